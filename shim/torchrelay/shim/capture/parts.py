"""Which parts of an object are state: for a walk that sees it for the first time, and for one that sees it again."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from types import FrameType
from typing import Any, NamedTuple

import torch

from torchrelay.shim.adapters import frames as frame_access
from torchrelay.shim.adapters import liveness
from torchrelay.shim.adapters.list_pointers import pointers
from torchrelay.shim.capture import callables
from torchrelay.shim.capture.kinds import PLAIN, Kind, kind_of

_OPTIMIZER_SKIP = frozenset({"state", "param_groups"})
_LOADER_PARTS = ("generator", "sampler", "batch_sampler", "dataset", "_iterator")
_BELOW_A_DATASET = (Kind.TORCH_GENERATOR, Kind.PYTHON_RANDOM, Kind.NUMPY_RANDOM, Kind.DATASET)


NONE: frozenset[str] = frozenset()


class Bindings(NamedTuple):
    """All names of a module or of an object, those that are no state included; of a module, which of them are dead."""

    dead: frozenset[str]
    names: list[str]
    values: list[Any]
    addresses: bytes
    """Of names and values, which are alive as long as the lists are."""

    @classmethod
    def of(cls, namespace: Mapping[str, Any], dead: frozenset[str] = NONE) -> Bindings:
        names, values = list(namespace), list(namespace.values())
        return cls(dead, names, values, pointers(names) + pointers(values))

    def still_true(self, namespace: Mapping[str, Any], dead: frozenset[str] = NONE) -> bool:
        return dead == self.dead and self.addresses == pointers(list(namespace)) + pointers(list(namespace.values()))


def live_names(frame: FrameType) -> dict[str, Any]:
    """Locals of a function's frame that can still be read."""
    live = liveness.live_locals(frame)
    if live is not None:
        seen = _not_hidden(live)
        return {k: v for k, v in frame_access.read_locals(frame).items() if k in seen}
    return {k: v for k, v in frame_access.read_locals(frame).items() if not k.startswith("__")}


@functools.lru_cache(maxsize=512)
def _not_hidden(names: frozenset[str]) -> frozenset[str]:
    return frozenset(name for name in names if not name.startswith("__"))


def global_names(values: Mapping[str, Any], dead: frozenset[str], without_state: Mapping[int, Any]) -> dict[str, Any]:
    """`without_state`: functions, classes and modules that are known to have none, by id."""
    return {
        k: v
        for k, v in values.items()
        if not k.startswith("__")
        and k not in dead
        and (type(v) in PLAIN or not (id(v) in without_state or callables.is_hidden(v)))
    }


def dead_globals(frames: Sequence[FrameType]) -> dict[int, frozenset[str]]:
    """By id of the namespace, for modules whose own code is running: what neither it nor any of its functions will read."""
    return {id(f.f_globals): liveness.dead_globals(f) for f in frames if frame_access.is_module_frame(f)}


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
    found = ((name, getattr(obj, name, None)) for name in _LOADER_PARTS)
    return {name: value for name, value in found if value is not None}


def dataset_parts(obj: Any) -> tuple[dict[str, Any], dict[str, Any]]:
    """Plain attributes, and generators and datasets below."""
    own = {name: (kind_of(type(value)), value) for name, value in attributes(obj).items()}
    plain = {name: value for name, (kind, value) in own.items() if kind is Kind.PLAIN}
    return plain, {name: value for name, (kind, value) in own.items() if kind in _BELOW_A_DATASET}


def attributes(obj: Any) -> dict[str, Any]:
    """Instance attributes, those in slots included."""
    found = dict(vars(obj)) if hasattr(obj, "__dict__") else {}
    for cls in type(obj).__mro__:
        slots = vars(cls).get("__slots__", ())
        for name in (slots,) if isinstance(slots, str) else slots:
            if name not in ("__dict__", "__weakref__") and hasattr(obj, name):
                found[name] = getattr(obj, name)
    return found


def numpy_random_state(obj: Any) -> Any:
    return obj.bit_generator.state if hasattr(obj, "bit_generator") else obj.get_state()
