"""Tell which parts of an object are state: for a walk that sees it for the first time, and for one that sees it again."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from types import FrameType
from typing import Any

import torch
from torch.utils.data import TensorDataset, dataloader

from torchrelay.protocol.errors import StateMismatchError
from torchrelay.shim.adapters.cpython import frames as frame_access
from torchrelay.shim.adapters.cpython.liveness import answer
from torchrelay.shim.adapters.raw_memory import dict_versions
from torchrelay.shim.adapters.raw_memory.list_pointers import pointers
from torchrelay.shim.capture.state.host_state import Deep
from torchrelay.shim.capture.state.random_below import follow, random_below
from torchrelay.shim.capture.values import callables
from torchrelay.shim.capture.values.base_types import fields, slot_names, slot_value
from torchrelay.shim.capture.values.kept import KEPT
from torchrelay.shim.capture.values.kinds import PLAIN, Kind, kind_of
from torchrelay.shim.tensors.taint import ABOUT_FORM

_OPTIMIZER_SKIP = frozenset({"state", "param_groups"})
LOADER_PARTS = ("generator", "sampler", "batch_sampler", "dataset", "_iterator")
SEED_SEQUENCE = "seed_seq"
"""The name that a state of numpy's generators has for that of the seed sequence."""
_BELOW_A_DATASET = (Kind.TORCH_GENERATOR, Kind.PYTHON_RANDOM, Kind.NUMPY_RANDOM, Kind.DATASET)
_ITERATORS = (Kind.LOADER_ITER, Kind.REPLAY_POINT, Kind.GENERATOR, Kind.ITERATOR, Kind.CYCLE)
_TORCHS_OWN = frozenset(vars(dataloader.DataLoader(TensorDataset(torch.empty(1)))))
"""Attributes that torch gives every loader. It has an iterator there if workers are kept; else `_iterator` is a class's own."""

_FORM = ABOUT_FORM | {"device", "dtype", "is_cuda", "itemsize", "layout", "nbytes", "ndim", "shape"}
"""What can be read of a tensor without its content."""
_MISSING = object()

NONE: frozenset[str] = frozenset()


class Bindings:
    """All names of a module or of an object, also those that are no state.

    `dead`: of a module, names that are not read any more.
    """

    __slots__ = ("_addresses", "_at", "_dead", "_kept", "_namespace", "_version")

    def __init__(self, namespace: dict[str, Any], dead: frozenset[str] = NONE, *, of_module: bool) -> None:
        works = dict_versions.OF_MODULES if of_module else dict_versions.OF_INSTANCES
        self._namespace = namespace
        self._dead = dead
        self._version = dict_versions.version(namespace) if works else None
        self._at = self._version.value if self._version is not None else None
        self._kept = [*namespace], [*namespace.values()]  # alive, so that their addresses are nobody else's
        self._addresses = pointers(self._kept[0]) + pointers(self._kept[1])

    def still_true(self, namespace: dict[str, Any], dead: frozenset[str] = NONE) -> bool:
        if dead != self._dead or namespace is not self._namespace:
            return False
        now = self._version.value if self._version is not None else None
        if now is not None and now == self._at:
            return True
        if self._addresses != pointers([*namespace]) + pointers([*namespace.values()]):
            return False
        self._at = now
        return True


def live_names(frame: FrameType) -> dict[str, Any]:
    """Return the locals of a function's frame that can still be read."""
    names = answer(frame).in_order
    if names is not None:
        return frame_access.read_locals(frame, names)
    return {k: v for k, v in frame_access.read_locals(frame).items() if not k.startswith("__")}


def names_at_gate(frame: FrameType, is_fresh: Callable[[Any], bool]) -> dict[str, Any]:
    """Return the live names at a gate. Of an object of the step's own, attributes stand in its place if only these are read.

    They have names such as `outputs.loss`: the logits beside it may be large, and no process needs them any more.
    """
    names = live_names(frame)
    partly = answer(frame).partly
    if not partly:
        return names
    found: dict[str, Any] = {}
    for name, value in names.items():
        parts = None
        if name in partly and type(value) not in PLAIN and is_fresh(value):
            parts = _attributes_read(value, partly[name])
        found |= {name: value} if parts is None else {f"{name}.{part}": v for part, v in parts.items()}
    return found


def _attributes_read(obj: Any, wanted: Sequence[str]) -> dict[str, Any] | None:
    """Return the attributes that are the object's own; None where reading them may look at more of it."""
    kind = type(obj)
    if kind in (torch.Tensor, torch.nn.Parameter):
        return {} if all(part.removesuffix("()") in _FORM for part in wanted) else None
    own = fields(obj)
    if own is None or not all(part in own and _is_plain_attribute(kind, part) for part in wanted):
        return None
    return {part: own[part] for part in wanted}


def _is_plain_attribute(kind: type, name: str) -> bool:
    """Return whether an object's own attribute of that name is read without code of its class."""
    asked = next(base for base in kind.__mro__ if "__getattribute__" in vars(base))
    of_class = next((vars(base)[name] for base in kind.__mro__ if name in vars(base)), None)
    return asked.__module__ == "builtins" and not hasattr(type(of_class), "__set__")


def variables(frame: FrameType, names: Iterable[str]) -> dict[str, Any]:
    """Return the variables of a frame, and attributes of variables, with these names, as far as they are there."""
    found = frame_access.read_locals(frame)
    for name, attribute in _of_attributes(names):
        own = fields(found[name]) if name in found else None
        if own is not None and attribute in own:
            found[f"{name}.{attribute}"] = own[attribute]
    return found


def _of_attributes(names: Iterable[str]) -> list[tuple[str, str]]:
    """Return variable and attribute, of names such as `outputs.loss`. Python itself calls a variable `.0`."""
    parts = (name.partition(".") for name in names)
    return [(name, attribute) for name, _, attribute in parts if name and attribute]


def set_variables(frame: FrameType, values: Mapping[str, Any]) -> None:
    """Bind names in a frame, and attributes of its variables. Raises StateMismatchError where there is no such object."""
    attributes_of = _of_attributes(values)
    parts = {f"{name}.{attribute}" for name, attribute in attributes_of}
    frame_access.set_locals(frame, {name: value for name, value in values.items() if name not in parts})
    for name, attribute in attributes_of:
        own = fields(frame_access.read_locals(frame, (name,)).get(name))
        if own is None:
            raise StateMismatchError(
                f"the step has made no {name} whose attribute {attribute} is read after its update"
            )
        own[attribute] = values[f"{name}.{attribute}"]


def global_names(values: Mapping[str, Any], dead: frozenset[str], without_state: Mapping[int, Any]) -> dict[str, Any]:
    """Return the globals that may be state. `without_state`: functions, classes and modules that are known to have none, by id.

    A name that means a function, a class or a module without state is some itself, since training may let it mean another one
    (`criterion = focal_loss`). Left out are those that are bound under their own name, as by `def`, `class` and `import`.
    """
    return {
        k: v
        for k, v in values.items()
        if not k.startswith("__")
        and k not in dead
        and (type(v) in PLAIN or not (id(v) in without_state or callables.is_hidden(v)) or callables.is_alias(k, v))
    }


def dead_globals(frames: Sequence[FrameType]) -> dict[int, frozenset[str]]:
    """Return, by a namespace's id, the globals that neither a module's running code nor any of its functions will read."""
    dead = {}
    for frame in frames:
        if frame.f_code.co_name == frame_access.MODULE:
            dead[id(frame.f_globals)] = answer(frame).dead
    return dead


def ddp_flags(obj: torch.nn.parallel.DistributedDataParallel) -> dict[str, Any]:
    return {
        "require_backward_grad_sync": obj.require_backward_grad_sync,
        "require_forward_param_sync": obj.require_forward_param_sync,
    }


def optimizer_attributes(obj: torch.optim.Optimizer) -> dict[str, Any]:
    return {k: v for k, v in obj.__dict__.items() if k not in _OPTIMIZER_SKIP and not k.endswith("_hooks")}


def optimizer_hooks(obj: torch.optim.Optimizer) -> list[tuple[str, tuple[Any, ...]]]:
    return callables.hooks(obj, ("_optimizer_step_pre_hooks", "_optimizer_step_post_hooks"))


def loader_parts(obj: Any) -> dict[str, Any]:
    found = ((name, getattr(obj, name, None)) for name in LOADER_PARTS)
    return {name: value for name, value in found if value is not None}


def own_attributes(obj: Any) -> dict[str, Any]:
    """Return all attributes of a data set; of a loader, those that a class or a script has given it."""
    found = attributes(obj)
    if kind_of(type(obj)) is not Kind.LOADER:
        return found
    kept = _TORCHS_OWN if found.get("persistent_workers") else _TORCHS_OWN - {"_iterator"}
    return {name: value for name, value in found.items() if name not in kept}


def loader_own(obj: Any) -> dict[str, Any]:
    """Return what of a loader's own attributes is state: plain ones, and iterators."""
    kinds = {name: (kind_of(type(value)), value) for name, value in own_attributes(obj).items()}
    return {name: value for name, (kind, value) in kinds.items() if kind is Kind.PLAIN or kind in _ITERATORS}


def made_with(obj: Any) -> dict[str, Any]:
    """Return what torch keeps of the arguments that a loader was made with."""
    return {name: value for name, value in attributes(obj).items() if name in _TORCHS_OWN and name != "_iterator"}


def is_set_up(loader: Any) -> bool:
    """Return whether a loader has the arguments that it was made with. One that is made for a recorded one is given them later."""
    return "dataset" in attributes(loader)


def dataset_parts(obj: Any) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the plain attributes, and the generators and data sets below."""
    own = {name: (kind_of(type(value)), value) for name, value in own_attributes(obj).items()}
    plain = {name: value for name, (kind, value) in own.items() if kind is Kind.PLAIN}
    return plain, {name: value for name, (kind, value) in own.items() if kind in _BELOW_A_DATASET}


def loaders_below(obj: Any) -> dict[str, Any]:
    """Return the data loaders that a data set draws from: an iterator of one has to be found by it."""
    return {name: value for name, value in own_attributes(obj).items() if kind_of(type(value)) is Kind.LOADER}


def below_dataset(obj: Any) -> tuple[dict[str, Any], dict[Any, Any]]:
    """Return parts as `dataset_parts` does, with loaders, and with generators in the data set's transforms."""
    plain, own = dataset_parts(obj)
    return plain, {
        **own,
        **loaders_below(obj),
        **{way: found for way, found in random_below(obj).items() if len(way.steps) > 1},
    }


def below_loader(obj: Any) -> dict[Any, Any]:
    return {**loader_parts(obj), **random_in_loader(obj)}


def random_in_loader(obj: Any) -> dict[Deep, Any]:
    """Return the generators of the object that collates."""
    collate = getattr(obj, "collate_fn", None)
    return {} if collate is None or kind_of(type(collate)) is not Kind.ATTRS else random_below(collate, "collate_fn")


def still_there(obj: Any, edges: Sequence[tuple[Any, Any]]) -> bool:
    """Return whether what was found inside is where it was."""
    try:
        return all(follow(obj, key) is value for key, value in edges if type(key) is Deep)
    except (LookupError, AttributeError, TypeError):
        return False


def attributes(obj: Any) -> dict[str, Any]:
    """Return an object's attributes, those in slots included, past whatever its class makes of them."""
    found = dict(fields(obj) or {})
    for base, name in slots_of(type(obj)):
        value = slot_value(base, name, obj, _MISSING)
        if value is not _MISSING:
            found[name] = value
    return found


_slots: dict[type, list[tuple[type, str]]] = {}


def slots_of(cls: type) -> list[tuple[type, str]]:
    known = _slots.get(cls)
    if known is None:
        known = _slots[cls] = slot_names(cls)
    return known


def set_attributes(obj: Any, content: Mapping[str, Any], *, remove_new: bool) -> None:
    """Write attributes past any property or `__setattr__`. `remove_new`: take away those that were born since."""
    own = fields(obj)
    slots = {name: base for base, name in slots_of(type(obj))}
    now = attributes(obj)
    if remove_new:
        for name in now.keys() - content.keys():
            if name in slots:
                vars(slots[name])[name].__delete__(obj)
            elif own is not None:
                del own[name]
    for name, value in content.items():
        if now.get(name, _MISSING) is value or value is KEPT:
            continue
        if name in slots:
            vars(slots[name])[name].__set__(obj, value)
        elif own is not None:
            own[name] = value
        else:
            object.__setattr__(obj, name, value)


def set_class_attributes(cls: type, content: Mapping[str, Any]) -> None:
    """Write attributes of a class, past any `__setattr__` of its metaclass."""
    for name, value in content.items():
        if vars(cls).get(name, _MISSING) is not value:
            type.__setattr__(cls, name, value)


def numpy_random_state(obj: Any) -> Any:
    """Return the state of a generator, of what it draws its bits from, or of a seed sequence.

    A generator's has that of its seed sequence, which counts the generators that it has spawned.
    """
    if hasattr(obj, "get_state"):
        return obj.get_state()
    if hasattr(obj, "spawn_key"):
        return {**obj.state, "spawn_key": [*obj.spawn_key]}  # a tuple would be a reference in a record
    bits = getattr(obj, "bit_generator", obj)
    sequence = getattr(bits, "seed_seq", None)
    return {**bits.state, SEED_SEQUENCE: numpy_random_state(sequence) if hasattr(sequence, "spawn_key") else None}


def put_numpy_random_state(obj: Any, state: Any) -> None:
    """Put what `numpy_random_state` was asked about to a state of it."""
    if hasattr(obj, "set_state"):
        obj.set_state(state)
    elif hasattr(obj, "spawn_key"):
        _put_spawned(obj, state)
    else:
        bits = getattr(obj, "bit_generator", obj)
        bits.state = {name: value for name, value in state.items() if name != SEED_SEQUENCE}
        if state[SEED_SEQUENCE] is not None:
            _put_spawned(bits.seed_seq, state[SEED_SEQUENCE])


def _put_spawned(sequence: Any, state: dict[str, Any]) -> None:
    """Put a seed sequence to the number of children that it has spawned. Numpy lets pickle alone write it."""
    if sequence.n_children_spawned != state["n_children_spawned"]:
        sequence.__setstate_cython__(type(sequence)(**state).__reduce__()[2])
