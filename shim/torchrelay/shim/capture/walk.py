"""Walks everything that an iteration of the training loop can change, from the training frames and the script's globals.

Breadth first, so that an object is known by its shortest path in every process. For each mutable object a node keeps a
shallow copy of its content: enough to put it back in place in this process (`undo`), and, with references between nodes, to
write it down for another one (`encode`). Large tensors are not copied: a rewind only checks that they were left alone.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import FrameType
from typing import Any, NamedTuple

import torch

from torchrelay.protocol.errors import UnsupportedError
from torchrelay.shim.adapters import frames as frame_access
from torchrelay.shim.adapters import liveness
from torchrelay.shim.capture import modules, small
from torchrelay.shim.capture.kinds import PLAIN, Kind, is_value, kind_of
from torchrelay.shim.capture.long_list import LONG, LongContent

MAX_NODES = 50_000
_MAX_NAMED = 20
BULK_LENGTH = 4_096
"""A list or dict that is longer and not of plain values holds data, not progress: it is not walked into."""

_OPTIMIZER_SKIP = frozenset({"state", "param_groups"})


@dataclass
class Node:
    """`parent` and `key` say how to reach the object from another node; `content` is its shallow copy at the boundary."""

    kind: Kind
    obj: Any
    parent: int
    key: Any
    content: Any


@dataclass
class HostState:
    nodes: list[Node] = field(default_factory=list)
    index: dict[int, int] = field(default_factory=dict)
    """id(object) -> place in `nodes`; valid while the nodes hold the objects."""
    versions: list[tuple[torch.Tensor, int, str]] = field(default_factory=list)
    """Tensors too large to copy, with the version that they had."""
    tree_versions: list[tuple[list[tuple[str, torch.Tensor]], list[int]]] = field(default_factory=list)
    """The same for parameters and large buffers of each tree of modules."""
    large: dict[str, torch.Tensor] = field(default_factory=dict)
    """The same by path: part of the device state."""
    roots: list[torch.nn.Module] = field(default_factory=list)
    optimizers: list[tuple[str, torch.optim.Optimizer]] = field(default_factory=list)
    unknown: list[str] = field(default_factory=list)
    bulk: list[tuple[Any, int, str]] = field(default_factory=list)
    """What is taken for data, with its length: the least that tells whether it was."""
    data: list[str] = field(default_factory=list)
    """Containers too long to look into, by name."""


class Inside(NamedTuple):
    """Key of a value that stands in a tuple: tuples are looked through, not nodes."""

    key: Any
    place: int


class Nth(NamedTuple):
    """Key of a value in a dict whose own key is an object: the place among the items."""

    place: int


class LargeTensor(NamedTuple):
    """Stands for a tensor whose content comes from elsewhere."""

    dtype: torch.dtype
    shape: tuple[int, ...]
    device: str


class Walk:
    """One pass; `state` is the result."""

    def __init__(self, trees: modules.ModuleTrees, before: HostState | None = None) -> None:
        """`before`: the boundary's state, for a walk at the gate: tensors that the step made are copied up to a larger size."""
        self.state = HostState()
        self._trees = trees
        self._before = before
        self._queue: deque[tuple[int, Any, Any]] = deque()
        self._covered: set[int] = set()
        self._visit: dict[Kind, Callable[[Kind, Any, int, Any], None]] = {
            Kind.LIST: self._list,
            Kind.DICT: self._dict,
            Kind.PARAM_GROUP: self._dict,
            Kind.SET: self._copyable,
            Kind.DEQUE: self._deque,
            Kind.TUPLE: self._tuple,
            Kind.BYTEARRAY: self._copyable,
            Kind.ATTRS: self._attrs,
            Kind.TENSOR: self._tensor,
            Kind.MODULE: self._module,
            Kind.DDP: self._ddp,
            Kind.OPTIMIZER: self._optimizer,
            Kind.LOADER: self._loader,
            Kind.LOADER_ITER: self._leaf,
            Kind.DATASET: self._dataset,
            Kind.TORCH_GENERATOR: self._torch_generator,
            Kind.PYTHON_RANDOM: self._python_random,
            Kind.NUMPY_RANDOM: self._numpy_random,
            Kind.NDARRAY: self._ndarray,
        }

    def run(self, frames: Sequence[FrameType], module_globals: Mapping[str, dict[str, Any]]) -> HostState:
        """`frames`: the script's frames, outermost first. `module_globals`: the script's modules by name."""
        for number, frame in enumerate(frames):
            if not frame_access.is_module_frame(frame):
                live = liveness.live_locals(frame)
                names = {
                    k: v for k, v in frame.f_locals.items() if (live is None or k in live) and not k.startswith("__")
                }
                self._add(Kind.FRAME, frame, -1, (number, frame.f_code.co_name), names)
        running = {id(f.f_globals): f for f in frames if frame_access.is_module_frame(f)}
        for name, values in module_globals.items():
            dead = _dead_globals(running[id(values)]) if id(values) in running else frozenset()
            names = {
                k: v
                for k, v in values.items()
                if not k.startswith("__") and k not in dead and kind_of(type(v)) is not Kind.OPAQUE
            }
            self._add(Kind.GLOBALS, values, -1, name, names)
        for number in range(len(self.state.nodes)):
            self._push(number, self.state.nodes[number].content)
        while self._queue:
            parent, key, obj = self._queue.popleft()
            self._one(parent, key, obj)
        self._forget_aliases()
        return self.state

    def _forget_aliases(self) -> None:
        """Views of parameters, and optimizer state under another name (`state_dict()` makes both), are no state of their own."""
        large = self.state.large
        if not large:
            return
        known = {id(v) for _, o in self.state.optimizers for values in o.state.values() for v in values.values()}
        for path, tensor in list(large.items()):
            if id(tensor) in known or isinstance(tensor._base, torch.nn.Parameter):
                del large[path]
                self.state.nodes[self.state.index[id(tensor)]].content = None

    def _one(self, parent: int, key: Any, obj: Any) -> None:
        if id(obj) in self.state.index or id(obj) in self._covered:
            return
        kind = kind_of(type(obj))
        visit = self._visit.get(kind)
        if visit is not None:
            if (
                kind is Kind.DICT
                and self.state.nodes[parent].kind is Kind.LIST
                and "params" in obj
                and self._in_groups(parent)
            ):
                kind = Kind.PARAM_GROUP
            visit(kind, obj, parent, key)
        elif kind is Kind.UNKNOWN:
            self.state.unknown.append(f"{self.path(parent)}{_step(key)} ({type(obj).__qualname__})")

    def _in_groups(self, parent: int) -> bool:
        node = self.state.nodes[parent]
        return node.key == "param_groups" and self.state.nodes[node.parent].kind is Kind.OPTIMIZER

    def _add(self, kind: Kind, obj: Any, parent: int, key: Any, content: Any) -> int:
        number = len(self.state.nodes)
        if number >= MAX_NODES:
            raise UnsupportedError(f"the training loop reaches more than {MAX_NODES} objects of changing state")
        self.state.nodes.append(Node(kind, obj, parent, key, content))
        self.state.index[id(obj)] = number
        return number

    def _push(self, number: int, content: Mapping[Any, Any]) -> None:
        queue = self._queue
        for key, value in content.items():
            if type(value) not in PLAIN:
                queue.append((number, key, value))

    def path(self, number: int) -> str:
        """How a person would write the way to a node: `self.scheduler.base_lrs`."""
        parts: list[str] = []
        while number >= 0:
            node = self.state.nodes[number]
            parts.append("" if node.kind is Kind.FRAME else str(node.key) if node.parent < 0 else _step(node.key))
            number = node.parent
        return "".join(reversed(parts)).lstrip(".")

    def _list(self, kind: Kind, obj: list[Any], parent: int, key: Any) -> None:
        if len(obj) >= LONG:
            content = self._trees.long_lists.look(obj)
            if content is not None:
                self._add(kind, obj, parent, key, self._since_boundary(content))
                return
        if len(obj) > BULK_LENGTH:
            self._data(obj, parent, key)
            return
        number = self._add(kind, obj, parent, key, list(obj))
        for place, value in enumerate(obj):
            if type(value) not in PLAIN:
                self._queue.append((number, place, value))

    def _data(self, obj: Any, parent: int, key: Any) -> None:
        self.state.bulk.append((obj, len(obj), f"{self.path(parent)}{_step(key)}"))
        if len(self.state.data) < _MAX_NAMED:
            self.state.data.append(
                f"{self.path(parent)}{_step(key)}: {len(obj)} objects, taken for data that does not change"
            )

    def _since_boundary(self, content: LongContent) -> LongContent:
        number = self._before.index.get(id(content.seen.obj)) if self._before is not None else None
        before = self._before.nodes[number].content if self._before is not None and number is not None else None
        same = isinstance(before, LongContent) and before.seen is content.seen and before.length == content.length
        return replace(content, same_as_before=same)

    def _deque(self, kind: Kind, obj: Any, parent: int, key: Any) -> None:
        number = self._add(kind, obj, parent, key, list(obj))
        for place, value in enumerate(obj):
            if type(value) not in PLAIN:
                self._queue.append((number, place, value))

    def _dict(self, kind: Kind, obj: dict[Any, Any], parent: int, key: Any) -> None:
        if len(obj) > BULK_LENGTH and type(next(iter(obj.values()))) not in PLAIN:
            self._data(obj, parent, key)
            return
        content = dict(obj)
        number = self._add(kind, obj, parent, key, content)
        if kind is Kind.PARAM_GROUP:
            content = {k: v for k, v in content.items() if k != "params"}
        for place, (name, value) in enumerate(content.items()):
            if type(value) not in PLAIN:
                self._queue.append((number, name if is_value(name) else Nth(place), value))

    def _tuple(self, kind: Kind, obj: tuple[Any, ...], parent: int, key: Any) -> None:
        """A tuple has no state of its own; what it holds may."""
        for place, value in enumerate(obj):
            if type(value) not in PLAIN:
                self._queue.append((parent, Inside(key, place), value))

    def _copyable(self, kind: Kind, obj: Any, parent: int, key: Any) -> None:
        self._add(kind, obj, parent, key, obj.copy())

    def _leaf(self, kind: Kind, obj: Any, parent: int, key: Any) -> None:
        self._add(kind, obj, parent, key, None)

    def _attrs(self, kind: Kind, obj: Any, parent: int, key: Any) -> None:
        content = attributes(obj)
        self._push(self._add(kind, obj, parent, key, content), content)

    def _tensor(self, kind: Kind, obj: torch.Tensor, parent: int, key: Any) -> None:
        if isinstance(obj, torch.nn.Parameter):
            self.state.versions.append((obj, obj._version, str(key)))
        elif small.is_small(obj) or self._is_fresh(obj):
            self._add(kind, obj, parent, key, small.take(obj))
        else:
            path = f"{self.path(parent)}{_step(key)}"
            self._add(kind, obj, parent, key, LargeTensor(obj.dtype, tuple(obj.shape), str(obj.device)))
            self.state.versions.append((obj, obj._version, path))
            self.state.large[path] = obj

    def _is_fresh(self, obj: torch.Tensor) -> bool:
        before = self._before
        return before is not None and id(obj) not in before.index and small.is_small(obj, small.FRESH_BYTES)

    def _module(self, kind: Kind, obj: torch.nn.Module, parent: int, key: Any) -> None:
        tree = self._trees.tree(obj)
        content = tree.take()
        number = self._add(kind, obj, parent, key, content)
        self.state.roots.append(obj)
        self._covered.update(map(id, tree.modules))
        for place, value in tree.objects(content):
            self._queue.append((number, place, value))
        self.state.tree_versions.append((tree.large, [tensor._version for _, tensor in tree.large]))

    def _ddp(self, kind: Kind, obj: torch.nn.parallel.DistributedDataParallel, parent: int, key: Any) -> None:
        flags = ("require_backward_grad_sync", "require_forward_param_sync")
        number = self._add(kind, obj, parent, key, {name: getattr(obj, name) for name in flags})
        self._queue.append((number, "module", obj.module))

    def _optimizer(self, kind: Kind, obj: torch.optim.Optimizer, parent: int, key: Any) -> None:
        content = {k: v for k, v in obj.__dict__.items() if k not in _OPTIMIZER_SKIP and not k.endswith("_hooks")}
        number = self._add(kind, obj, parent, key, content)
        self.state.optimizers.append((f"{self.path(parent)}{_step(key)}", obj))
        self._queue.append((number, "param_groups", obj.param_groups))
        self._push(number, content)
        if self._trees.has_plain_state(obj):
            self._optimizer_values(obj, number)

    def _optimizer_values(self, obj: torch.optim.Optimizer, number: int) -> None:
        """Optimizer state that is no tensor: step counts, histories."""
        plain = {
            (place, name): value
            for place, p in enumerate(p for g in obj.param_groups for p in g["params"])
            for name, value in obj.state.get(p, {}).items()
            if not isinstance(value, torch.Tensor)
        }
        if plain:
            self._push(self._add(Kind.OPTIMIZER_STATE, obj.state, number, "state", plain), plain)

    def _loader(self, kind: Kind, obj: Any, parent: int, key: Any) -> None:
        """Below the replay point: only what decides the order of the data."""
        number = self._add(kind, obj, parent, key, None)
        for name in ("generator", "sampler", "batch_sampler", "dataset", "_iterator"):
            value = getattr(obj, name, None)
            if value is not None:
                self._queue.append((number, name, value))

    def _dataset(self, kind: Kind, obj: Any, parent: int, key: Any) -> None:
        """A dataset is data: its plain attributes and generators are state, its containers are not."""
        content = {k: v for k, v in attributes(obj).items() if kind_of(type(v)) is Kind.PLAIN}
        number = self._add(kind, obj, parent, key, content)
        for name, value in attributes(obj).items():
            if kind_of(type(value)) in (Kind.TORCH_GENERATOR, Kind.PYTHON_RANDOM, Kind.NUMPY_RANDOM, Kind.DATASET):
                self._queue.append((number, name, value))

    def _torch_generator(self, kind: Kind, obj: torch.Generator, parent: int, key: Any) -> None:
        self._add(kind, obj, parent, key, small.take(obj.get_state()))

    def _python_random(self, kind: Kind, obj: Any, parent: int, key: Any) -> None:
        self._add(kind, obj, parent, key, obj.getstate())

    def _numpy_random(self, kind: Kind, obj: Any, parent: int, key: Any) -> None:
        self._add(kind, obj, parent, key, numpy_random_state(obj))

    def _ndarray(self, kind: Kind, obj: Any, parent: int, key: Any) -> None:
        if obj.nbytes <= small.SMALL_BYTES and obj.dtype.kind != "O":
            self._add(kind, obj, parent, key, obj.copy())
        elif obj.flags.writeable:
            what = "of objects" if obj.dtype.kind == "O" else f"larger than {small.SMALL_BYTES >> 10} KiB"
            self.state.unknown.append(f"{self.path(parent)}{_step(key)} (an array {what})")


def _dead_globals(frame: FrameType) -> frozenset[str]:
    """Globals of a module whose own code runs the loop: those that neither it nor any of its functions will read again."""
    live = liveness.live_locals(frame)
    if live is None:
        return frozenset()
    written = frozenset(frame.f_code.co_names)
    return written - live - liveness.read_by_functions(frame.f_code)


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


def _step(key: Any) -> str:
    if type(key) is Inside:
        return f"{_step(key.key)}[{key.place}]"
    return f".{key}" if isinstance(key, str) and key.isidentifier() else f"[{key!r}]"
