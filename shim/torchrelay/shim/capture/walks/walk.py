"""Walk everything that an iteration of the training loop can change, from the training frames and the script's globals.

Breadth first, so that an object is known by its shortest path in every process. For each mutable object a node keeps a shallow copy
of its content: enough to put it back in place in this process (`undo`), and, with references between nodes, to write it down for
another one (`encode`). Large tensors are not copied: a rewind only checks that they were left alone.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from types import FrameType, ModuleType
from typing import Any

import torch

from torchrelay.protocol.errors import UnsupportedError
from torchrelay.shim.adapters.cpython import frames as frame_access
from torchrelay.shim.capture.handlers import HANDLERS
from torchrelay.shim.capture.handlers.containers import capture_inside
from torchrelay.shim.capture.handlers.variables import iterators_of_loops
from torchrelay.shim.capture.models import aliases, modules
from torchrelay.shim.capture.state import owners
from torchrelay.shim.capture.state.host_state import Definition, Fields, HostState, StateNode, versions_now
from torchrelay.shim.capture.state.parts import NONE, Bindings, dead_globals, global_names, live_names, names_at_gate
from torchrelay.shim.capture.state.random_below import GENERATORS
from torchrelay.shim.capture.values import callables
from torchrelay.shim.capture.values.base_types import fields
from torchrelay.shim.capture.values.kinds import DICT, LIST, PLAIN, Kind, kind_of

MAX_NODES = 50_000
ITERATORS = frozenset({Kind.LOADER_ITER, Kind.CYCLE})
_PLAIN_CONTAINERS = frozenset({"builtins", "collections"})
NO_PARTS: frozenset[int] = frozenset()
_CAPTURE = {kind: handler.capture for kind, handler in HANDLERS.items() if handler.capture is not None}


class Walk:
    """One pass over the state, which ends in `state`."""

    def __init__(
        self, trees: modules.ModuleTrees, before: HostState | None = None, state: HostState | None = None
    ) -> None:
        """Prepare a walk.

        `before`: the boundary's state, for a walk at the gate: it copies tensors that the step made up to a larger size.
        """
        self.state = state or HostState(data_origins=trees.data_origins)
        self.trees = trees
        self._before = before
        self.queue: deque[tuple[int, Any, Any]] = deque()
        self._parts: frozenset[int] = NO_PARTS
        self.parameters: list[tuple[int, Any, Any]] = []
        """Edges to parameters: whether they have an owner is known once all models and optimizers have been met."""
        self.without_order: list[tuple[int, Any, Any]] = []
        """Elements of sets that another process does not find there. Whether something else leads to them is known in the end."""
        self.knows_owners = False
        self._of_optimizers: set[int] = set()
        self._of_threads = trees.queues.threads

    def run(self, frames: Sequence[FrameType], module_globals: Mapping[str, dict[str, Any]]) -> HostState:
        """Return the state. `frames`: the script's frames, outermost first. `module_globals`: the script's modules by name.

        Where a part of an owner, such as a parameter group, was met before its owner, the walk is done once more, and leaves such
        parts to their owners: what an object is, and by which path it is known, does not depend on what else holds it.
        """
        self.trees.is_at_gate = self._before is not None
        self._go(frames, module_globals)
        self._parts = owners.parts_met_elsewhere(self.state)
        if self._parts:
            self.state = HostState(data_origins=self.trees.data_origins)
            self._go(frames, module_globals)
        owners.put_wrapped_first(self.state)
        self.state.tree_versions = versions_now([(large, []) for large in self.trees.large_of(self.state.roots)])
        aliases.find(self.state, self.trees, range(len(self.state.nodes)))
        return self.state

    def _go(self, frames: Sequence[FrameType], module_globals: Mapping[str, dict[str, Any]]) -> None:
        for number, frame in enumerate(frames):
            if not frame_access.is_module_frame(frame):
                self.add(Kind.FRAME, frame, -1, (number, frame.f_code.co_name), self._names(frame))
        dead = dead_globals(frames)
        for name, values in module_globals.items():
            self._look_for_definitions(values)
            names = global_names(values, dead.get(id(values), NONE), self.state.without_state)
            number = self.add(Kind.GLOBALS, values, -1, name, names)
            self.state.nodes[number].seen = Bindings(values, dead.get(id(values), NONE), of_module=True)
        of_loops = iterators_of_loops(self.trees)
        if of_loops:
            self.add(Kind.LOOPS, self.trees.loops, -1, "loops", of_loops)
        self.add(Kind.SETTINGS, self.trees.settings, -1, "settings of the process", self.trees.settings.changed())
        holds = self.trees.settings.holds
        held = holds.now()
        if held:
            self.add(Kind.HELD, holds, -1, "held by the process", held)
        for number in range(len(self.state.nodes)):
            self.push(number, self.state.nodes[number].content)
        self._work_off()

    def _names(self, frame: FrameType) -> dict[str, Any]:
        return live_names(frame) if self._before is None else names_at_gate(frame, self.is_fresh)

    def _work_off(self) -> None:
        self.knows_owners = False
        while self.queue:
            parent, key, obj = self.queue.popleft()
            self._one(parent, key, obj)
        if self.parameters:
            self._know_owners()
        for parent, key, obj in self.parameters:
            self._one(parent, key, obj)
        self.parameters.clear()
        self.name_without_order()

    def _know_owners(self) -> None:
        groups = (group for _, optimizer in self.state.optimizers for group in optimizer.param_groups)
        self._of_optimizers = {id(parameter) for group in groups for parameter in group["params"]}
        self.knows_owners = True

    def name_without_order(self) -> None:
        """Name the models and large tensors that only a set holds, which no other process finds there."""
        if self.without_order:
            self._know_owners()
        state = self.state
        for number, key, obj in self.without_order:
            name = f"{state.path(number, key)}{callables.WITHOUT_ORDER}"
            if name in state.places or id(obj) in state.index or id(obj) in state.covered:
                continue
            if not (isinstance(obj, torch.nn.Parameter) and self.has_owner(obj)):
                self.unknown(name, number, key)
        self.without_order.clear()

    def has_owner(self, parameter: torch.nn.Parameter) -> bool:
        """Return whether a model or an optimizer has the parameter, and carries it."""
        state = self.state
        trees = (state.nodes[state.index[id(root)]].content.tree for root in state.roots)
        return id(parameter) in self._of_optimizers or any(tree.place_of(parameter) is not None for tree in trees)

    def _one(self, parent: int, key: Any, obj: Any) -> None:
        if id(obj) in self.state.index:
            return
        kind = kind_of(type(obj))
        if self._of_threads and self._of_threads.is_theirs(obj):
            return
        if id(obj) in self.state.covered and not owners.is_apart(self.state, parent, kind):
            return
        capture = _CAPTURE.get(kind)
        if capture is not None:
            if kind is DICT and self.state.nodes[parent].kind is LIST and owners.is_group(self.state, parent, obj):
                kind = Kind.PARAM_GROUP
                capture = _CAPTURE[Kind.PARAM_GROUP]
            elif id(obj) in self._parts and not owners.is_groups(self.state, parent, key):
                return
            capture(self, kind, obj, parent, key)
        elif isinstance(obj, frozenset):
            capture_inside(self, kind, obj, parent, key)

    def add(self, kind: Kind, obj: Any, parent: int, key: Any, content: Any) -> int:
        number = len(self.state.nodes)
        if number >= MAX_NODES:
            raise UnsupportedError(f"the training loop reaches more than {MAX_NODES} objects of changing state")
        self.state.nodes.append(StateNode(kind, obj, parent, key, content))
        self.state.index[id(obj)] = number
        self._note(number, kind)
        return number

    def _note(self, number: int, kind: Kind) -> None:
        if kind in ITERATORS:
            self.state.drawn_from.add(number)
        elif kind in GENERATORS:
            self.state.generators.add(number)

    def push(self, number: int, content: Mapping[Any, Any]) -> None:
        for key, value in content.items():
            if type(value) not in PLAIN:
                self.edge(number, key, value)

    def edge(self, number: int, key: Any, value: Any) -> None:
        self.state.nodes[number].edges.append((key, value))
        self.queue.append((number, key, value))

    def fields(self, number: int, obj: Any) -> None:
        """Add an edge to a container's attributes: a class of the script's or a framework's may have some beside its items."""
        own = fields(obj) if type(obj).__module__ not in _PLAIN_CONTAINERS else None
        if own is not None:
            self.edge(number, Fields(), own)

    def data(self, obj: Any, length: int, parent: int, key: Any) -> None:
        """Note a container that is taken for data, and is not walked into."""
        self.state.bulk.append((obj, length, self.state.path(parent, key)))

    def is_fresh(self, obj: Any) -> bool:
        """Return whether the step has made the object, at a gate."""
        return self._before is not None and id(obj) not in self._before.index

    def content_before(self, obj: Any) -> Any:
        """Return, at a gate, what the boundary's walk has kept of an object."""
        number = self._before.index.get(id(obj)) if self._before is not None else None
        return self._before.nodes[number].content if self._before is not None and number is not None else None

    def _look_for_definitions(self, namespace: Mapping[str, Any]) -> None:
        """Note which functions and classes of a module have no state, so that they are not asked for again."""
        for value in namespace.values():
            kind = kind_of(type(value))
            if kind is Kind.FUNCTION and callables.is_users_function(value):
                if callables.has_state(value):
                    continue
                self.define(vars(value), None)
            elif kind is Kind.CLASS and callables.is_users_class(value):
                if callables.class_state(value):
                    continue
                self.define(vars(value), value)
            elif not (kind in (Kind.FUNCTION, Kind.CLASS) or isinstance(value, ModuleType)) or not callables.is_hidden(
                value
            ):
                continue
            self.state.without_state[id(value)] = value

    def define(self, space: Mapping[str, Any], cls: type | None) -> None:
        """Note a function or a class. A walk that goes on from this one looks whether it has more attributes by then."""
        self.state.definitions.append(Definition(space, frozenset(space), cls))
        self.state.spaces.append(space)
        self.state.sizes.append(len(space))

    def unknown(self, name: str, parent: int, key: Any) -> None:
        self.state.unknown.append(name)
        self.state.places[name] = parent, key
