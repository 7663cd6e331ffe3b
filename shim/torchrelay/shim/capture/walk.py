"""Walks everything that an iteration of the training loop can change, from the training frames and the script's globals.

Breadth first, so that an object is known by its shortest path in every process. For each mutable object a node keeps a
shallow copy of its content: enough to put it back in place in this process (`undo`), and, with references between nodes, to
write it down for another one (`encode`). Large tensors are not copied: a rewind only checks that they were left alone.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from types import FrameType, FunctionType, ModuleType
from typing import Any

import torch

from torchrelay.protocol.errors import UnsupportedError
from torchrelay.shim.adapters import cycles, held_generators
from torchrelay.shim.adapters import frames as frame_access
from torchrelay.shim.adapters.dtensor import local, spread_of
from torchrelay.shim.adapters.tensor_versions import version_of, versions_of
from torchrelay.shim.capture import callables, modules, optimizer_order, small
from torchrelay.shim.capture.host_state import Definition, Fields, HostState, Inside, LargeTensor, Node, Nth
from torchrelay.shim.capture.kinds import DICT, LIST, PLAIN, TUPLE, Kind, is_value, kind_of
from torchrelay.shim.capture.long_list import LONG, LongContent
from torchrelay.shim.capture.parts import (
    NONE,
    Bindings,
    attributes,
    below_dataset,
    below_loader,
    ddp_flags,
    dead_globals,
    global_names,
    live_names,
    numpy_random_state,
    optimizer_attributes,
    optimizer_hooks,
)
from torchrelay.shim.capture.random_below import GENERATORS
from torchrelay.shim.capture.replay_point import ReplayPoint

MAX_NODES = 50_000
ITERATORS = frozenset({Kind.LOADER_ITER, Kind.CYCLE, Kind.GENERATOR})
_PLAIN_CONTAINERS = frozenset({"builtins", "collections"})
_MAX_NAMED = 20
BULK_LENGTH = 4_096
"""A list or dict that is longer and not of plain values holds data, not progress: it is not walked into."""


class Walk:
    """One pass; `state` is the result."""

    def __init__(
        self, trees: modules.ModuleTrees, before: HostState | None = None, state: HostState | None = None
    ) -> None:
        """`before`: the boundary's state, for a walk at the gate: tensors that the step made are copied up to a larger size."""
        self.state = state or HostState()
        self._trees = trees
        self._before = before
        self._queue: deque[tuple[int, Any, Any]] = deque()

    def run(self, frames: Sequence[FrameType], module_globals: Mapping[str, dict[str, Any]]) -> HostState:
        """`frames`: the script's frames, outermost first. `module_globals`: the script's modules by name."""
        for number, frame in enumerate(frames):
            if not frame_access.is_module_frame(frame):
                self._add(Kind.FRAME, frame, -1, (number, frame.f_code.co_name), live_names(frame))
        dead = dead_globals(frames)
        for name, values in module_globals.items():
            self._look_for_definitions(values)
            names = global_names(values, dead.get(id(values), NONE), self.state.without_state)
            number = self._add(Kind.GLOBALS, values, -1, name, names)
            self.state.nodes[number].seen = Bindings(values, dead.get(id(values), NONE), of_module=True)
        for number in range(len(self.state.nodes)):
            self._push(number, self.state.nodes[number].content)
        self._work_off()
        self._forget_aliases()
        return self.state

    def _work_off(self) -> None:
        while self._queue:
            parent, key, obj = self._queue.popleft()
            self._one(parent, key, obj)

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
        if id(obj) in self.state.index or id(obj) in self.state.covered:
            return
        kind = kind_of(type(obj))
        visit = _VISIT.get(kind)
        if visit is not None:
            if kind is DICT and self.state.nodes[parent].kind is LIST and "params" in obj and self._in_groups(parent):
                kind = Kind.PARAM_GROUP
            visit(self, kind, obj, parent, key)
        elif kind is Kind.UNKNOWN:
            name = f"{self.state.path(parent, key)} ({type(obj).__qualname__})"
            self._unknown(name, parent, key)
            if hasattr(type(obj), "__next__"):
                self.state.iterators.append((name, obj))

    def _visit_one(self, kind: Kind, obj: Any, parent: int, key: Any) -> None:
        _VISIT[kind](self, kind, obj, parent, key)

    def _in_groups(self, parent: int) -> bool:
        node = self.state.nodes[parent]
        return node.key == "param_groups" and self.state.nodes[node.parent].kind is Kind.OPTIMIZER

    def _add(self, kind: Kind, obj: Any, parent: int, key: Any, content: Any) -> int:
        number = len(self.state.nodes)
        if number >= MAX_NODES:
            raise UnsupportedError(f"the training loop reaches more than {MAX_NODES} objects of changing state")
        self.state.nodes.append(Node(kind, obj, parent, key, content))
        self.state.index[id(obj)] = number
        self._note(number, kind)
        return number

    def _note(self, number: int, kind: Kind) -> None:
        if kind in ITERATORS:
            self.state.drawn_from.add(number)
        elif kind in GENERATORS:
            self.state.generators.add(number)

    def _push(self, number: int, content: Mapping[Any, Any]) -> None:
        for key, value in content.items():
            if type(value) not in PLAIN:
                self._edge(number, key, value)

    def _edge(self, number: int, key: Any, value: Any) -> None:
        self.state.nodes[number].edges.append((key, value))
        self._queue.append((number, key, value))

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
        self._fields(number, obj)
        for place, value in enumerate(obj):
            if type(value) not in PLAIN:
                self._edge(number, place, value)

    def _fields(self, number: int, obj: Any) -> None:
        """A container of the script's or a framework's own class can have attributes beside its items."""
        if type(obj).__module__ not in _PLAIN_CONTAINERS and hasattr(obj, "__dict__"):
            self._edge(number, Fields(), vars(obj))

    def _data(self, obj: Any, parent: int, key: Any) -> None:
        self.state.bulk.append((obj, len(obj), self.state.path(parent, key)))
        if len(self.state.data) < _MAX_NAMED:
            self.state.data.append(
                f"{self.state.path(parent, key)}: {len(obj)} objects, taken for data that does not change"
            )

    def _since_boundary(self, content: LongContent) -> LongContent:
        number = self._before.index.get(id(content.seen.obj)) if self._before is not None else None
        before = self._before.nodes[number].content if self._before is not None and number is not None else None
        same = isinstance(before, LongContent) and before.seen is content.seen and before.length == content.length
        return replace(content, same_as_before=same)

    def _deque(self, kind: Kind, obj: Any, parent: int, key: Any) -> None:
        number = self._add(kind, obj, parent, key, list(obj))
        self._fields(number, obj)
        for place, value in enumerate(obj):
            if type(value) not in PLAIN:
                self._edge(number, place, value)

    def _dict(self, kind: Kind, obj: dict[Any, Any], parent: int, key: Any) -> None:
        if len(obj) > BULK_LENGTH and type(next(iter(obj.values()))) not in PLAIN:
            self._data(obj, parent, key)
            return
        content = dict(obj)
        number = self._add(kind, obj, parent, key, content)
        self._fields(number, obj)
        if kind is Kind.PARAM_GROUP:
            content = {k: v for k, v in content.items() if k != "params"}
        for place, (name, value) in enumerate(content.items()):
            if type(value) not in PLAIN:
                self._edge(number, name if is_value(name) else Nth(place), value)

    def _tuple(self, kind: Kind, obj: Any, parent: int, key: Any) -> None:
        """A tuple has no state of its own; what it holds may. The same for bound methods and their like."""
        for place, value in enumerate(obj) if kind is TUPLE else callables.parts(obj):
            if type(value) not in PLAIN:
                self._queue.append((parent, Inside(key, place), value))

    def _look_for_definitions(self, namespace: Mapping[str, Any]) -> None:
        """Notes which functions and classes of a module have no state, so that it is not asked for again."""
        for value in namespace.values():
            kind = kind_of(type(value))
            if kind is Kind.FUNCTION and callables.is_users_function(value):
                if callables.has_state(value):
                    continue
                self._define(vars(value), None)
            elif kind is Kind.CLASS and callables.is_users_class(value):
                if callables.class_state(value):
                    continue
                self._define(vars(value), value)
            elif not (kind in (Kind.FUNCTION, Kind.CLASS) or isinstance(value, ModuleType)) or not callables.is_hidden(
                value
            ):
                continue
            self.state.without_state[id(value)] = value

    def _function(self, kind: Kind, obj: FunctionType, parent: int, key: Any) -> None:
        if not callables.is_users_function(obj):
            self._tuple(kind, obj, parent, key)
            return
        content, fields, defaults = callables.variables(obj), callables.fields(obj), callables.defaults(obj)
        self._define(vars(obj), None)
        if content or defaults or fields:
            number = self._add(kind, obj, parent, key, content)
            self._push(number, content)
            self._push(number, defaults)
            if fields:
                self._edge(number, Fields(), fields)

    def _class(self, kind: Kind, obj: type, parent: int, key: Any) -> None:
        if not callables.is_users_class(obj):
            return
        content = callables.class_state(obj)
        self._define(vars(obj), obj)
        if content:
            self._push(self._add(kind, obj, parent, key, content), content)

    def _define(self, space: Mapping[str, Any], cls: type | None) -> None:
        """A walk that goes on from this one looks whether there are more attributes by then."""
        self.state.definitions.append(Definition(space, frozenset(space), cls))
        self.state.spaces.append(space)
        self.state.sizes.append(len(space))

    def _copyable(self, kind: Kind, obj: Any, parent: int, key: Any) -> None:
        number = self._add(kind, obj, parent, key, obj.copy())
        self._fields(number, obj)

    def _leaf(self, kind: Kind, obj: Any, parent: int, key: Any) -> None:
        self._add(kind, obj, parent, key, None)

    def _attrs(self, kind: Kind, obj: Any, parent: int, key: Any) -> None:
        content = attributes(obj)
        number = self._add(kind, obj, parent, key, content)
        self._push(number, content)
        cls = type(obj)
        if "<locals>" in cls.__qualname__ and callables.is_users_class(cls):  # no module leads to it
            self._edge(number, "__class__", cls)

    def _tensor(self, kind: Kind, obj: torch.Tensor, parent: int, key: Any) -> None:
        if type(obj) is not torch.Tensor and isinstance(obj, torch.nn.Parameter):
            self.state.versions.append((obj, version_of(obj), str(key)))
            return
        before = self._before
        fresh = before is not None and id(obj) not in before.index
        value = small.take_if_small(obj, small.FRESH_BYTES if fresh else small.SMALL_BYTES)
        if value is not None:
            self._add(kind, obj, parent, key, value)
        else:
            path = self.state.path(parent, key)
            part = local(obj)
            content = LargeTensor(obj.dtype, tuple(part.shape), str(obj.device), spread_of(obj))
            self._add(kind, obj, parent, key, content)
            self.state.versions.append((obj, version_of(obj), path))
            self.state.large[path] = obj

    def _module(self, kind: Kind, obj: torch.nn.Module, parent: int, key: Any) -> None:
        tree = self._trees.tree(obj)
        content = tree.take()
        number = self._add(kind, obj, parent, key, content)
        self.state.roots.append(obj)
        self.state.covered.update(map(id, tree.modules))
        for place, value in tree.objects(content):
            self._edge(number, place, value)
        for name in tree.hooked_tensors:
            self._unknown(f"{self.state.path(number)}.{name} (a hook of the tensor)", parent, key)
        self.state.tree_versions.append((tree.large, versions_of([tensor for _, tensor in tree.large])))

    def _ddp(self, kind: Kind, obj: torch.nn.parallel.DistributedDataParallel, parent: int, key: Any) -> None:
        number = self._add(kind, obj, parent, key, ddp_flags(obj))
        self._edge(number, "module", obj.module)
        if obj._comm_hooks:
            self._edge(number, "_comm_hooks", obj._comm_hooks)

    def _optimizer(self, kind: Kind, obj: torch.optim.Optimizer, parent: int, key: Any) -> None:
        content = optimizer_attributes(obj)
        number = self._add(kind, obj, parent, key, content)
        self.state.optimizers.append((self.state.path(parent, key), obj))
        self._edge(number, "param_groups", obj.param_groups)
        self._push(number, content)
        for name, functions in optimizer_hooks(obj):
            self._edge(number, name, functions)
        if self._trees.has_plain_state(obj):
            self._optimizer_values(obj, number)

    def _optimizer_values(self, obj: torch.optim.Optimizer, number: int) -> None:
        """Optimizer state that is no tensor: step counts, histories."""
        states = [obj.state.get(p, {}) for g in obj.param_groups for p in g["params"]]
        plain: dict[tuple[int, str], Any] = {
            (place, name): value
            for place, values in enumerate(states)
            for name, value in values.items()
            if not isinstance(value, torch.Tensor)
        }
        orders = ((place, optimizer_order.of(values)) for place, values in enumerate(states))
        plain |= {(place, optimizer_order.NAME): order for place, order in orders if order}
        if plain:
            self._push(self._add(Kind.OPTIMIZER_STATE, obj.state, number, "state", plain), plain)

    def _loader(self, kind: Kind, obj: Any, parent: int, key: Any) -> None:
        """Below the replay point: only what decides the order of the data."""
        number = self._add(kind, obj, parent, key, None)
        self._push(number, below_loader(obj))

    def _replay_point(self, kind: Kind, obj: ReplayPoint, parent: int, key: Any) -> None:
        content = obj.place()
        self._push(self._add(kind, obj, parent, key, content), content)

    def _dataset(self, kind: Kind, obj: Any, parent: int, key: Any) -> None:
        """A dataset is data: its plain attributes and generators are state, its containers are not."""
        content, generators = below_dataset(obj)
        self._push(self._add(kind, obj, parent, key, content), generators)

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
            self._unknown(f"{self.state.path(parent, key)} (an array {what})", parent, key)

    def _cycle(self, kind: Kind, obj: Any, parent: int, key: Any) -> None:
        """Whether it can be led to its place depends on what it draws from: the writer knows that."""
        self._add(kind, obj, parent, key, cycles.place_of(obj))
        name = f"{self.state.path(parent, key)} (cycle)"
        self._unknown(name, parent, key)
        self.state.iterators.append((name, obj))

    def _generator(self, kind: Kind, obj: Any, parent: int, key: Any) -> None:
        """A running loop leads its own to its place."""
        name = f"{self.state.path(parent, key)} (generator)"
        self._unknown(name, parent, key)
        self.state.iterators.append((name, obj))
        found = held_generators.stand(obj) if id(obj) not in self._trees.of_loops else None
        if found is not None:
            number = self._add(kind, obj, parent, key, found.content)
            self.state.nodes[number].seen = found.source
            self._push(number, found.given)

    def _unknown(self, name: str, parent: int, key: Any) -> None:
        self.state.unknown.append(name)
        self.state.places[name] = parent, key


_VISIT: dict[Kind, Callable[[Walk, Kind, Any, int, Any], None]] = {
    Kind.LIST: Walk._list,
    Kind.DICT: Walk._dict,
    Kind.PARAM_GROUP: Walk._dict,
    Kind.SET: Walk._copyable,
    Kind.DEQUE: Walk._deque,
    Kind.TUPLE: Walk._tuple,
    Kind.THROUGH: Walk._tuple,
    Kind.FUNCTION: Walk._function,
    Kind.CLASS: Walk._class,
    Kind.BYTEARRAY: Walk._copyable,
    Kind.ATTRS: Walk._attrs,
    Kind.TENSOR: Walk._tensor,
    Kind.MODULE: Walk._module,
    Kind.DDP: Walk._ddp,
    Kind.OPTIMIZER: Walk._optimizer,
    Kind.LOADER: Walk._loader,
    Kind.LOADER_ITER: Walk._leaf,
    Kind.REPLAY_POINT: Walk._replay_point,
    Kind.DATASET: Walk._dataset,
    Kind.TORCH_GENERATOR: Walk._torch_generator,
    Kind.PYTHON_RANDOM: Walk._python_random,
    Kind.NUMPY_RANDOM: Walk._numpy_random,
    Kind.NDARRAY: Walk._ndarray,
    Kind.CYCLE: Walk._cycle,
    Kind.GENERATOR: Walk._generator,
}
