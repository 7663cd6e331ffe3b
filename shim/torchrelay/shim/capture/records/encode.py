"""Write host state as plain data: for the journal, and back into the objects of another process.

A value is written as itself if it is plain, and otherwise as one of `tags`: (REF, node) if the walk has a node for it, (TUPLE,
class or None, items) for a tuple, with its attributes where it has some, or for a frozenset of objects, (WEAK, value) for a weak
reference to what is written so, (NAMED, pickle) for a function or class that is found by name, (METHOD, object, name), (PARTIAL,
function, arguments, keywords), (PART, node, path) for a module below another one, (BOUND, node, place) for a parameter or buffer of
one, (FREE, form) for a parameter of none in its optimizer's group, (GROUPED, node, place) for such a one elsewhere, (WINDOW, node,
window) for an array that looks into another one's memory, (SAVE, which) for the future of an async save, (VALUE, pickle) for a
constant that pickles, (FILE, id, form) for a file that is written to, (ADDRESS, object) for a number that says where one lies,
(HOOK, node, (path, attribute, place)) for the handle of a module's hook, or (OPAQUE, name of its type), with a function's `Closure`
where there is one. Plain values are never tuples, so the tags cannot be mistaken.
"""

from __future__ import annotations

import functools
import io
import itertools
import pickle
import sys
import types
import weakref
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

import torch
from torch.utils.hooks import RemovableHandle

from torchrelay.shim.adapters.parallel import module_hooks
from torchrelay.shim.capture.handlers import HANDLERS
from torchrelay.shim.capture.models import module_parts, modules
from torchrelay.shim.capture.records import closures, shared_memory
from torchrelay.shim.capture.state import addresses, keys, shared
from torchrelay.shim.capture.state.host_state import HostState, Nth, StateNode
from torchrelay.shim.capture.state.shared import Numbered, copy_of, page_of
from torchrelay.shim.capture.state.tags import (
    ADDRESS,
    BOUND,
    FILE,
    GROUPED,
    HOOK,
    METHOD,
    NAMED,
    OPAQUE,
    PART,
    PARTIAL,
    REF,
    SAVE,
    TUPLE,
    VALUE,
    WEAK,
    WINDOW,
)
from torchrelay.shim.capture.values import by_value, written_files
from torchrelay.shim.capture.values.array_windows import is_window, window_of
from torchrelay.shim.capture.values.base_types import fields, tuple_items
from torchrelay.shim.capture.values.kinds import GONE, IMPLIED, PLAIN, TENSOR, Kind, kind_of
from torchrelay.shim.capture.values.small import TensorValue
from torchrelay.shim.script.completed_collective import CompletedCollective
from torchrelay.shim.script.save_future import SaveFuture


class EncodedNode(NamedTuple):
    """A node in written form. `cls`: what is made where there is no such object; None if it is not found by name, or is `IMPLIED`.

    `extra`: what making it takes beside its content: the length of a deque, the factory of a defaultdict. Of a function or class
    its name.
    """

    kind: Kind
    cls: type | None
    parent: int
    key: Any
    content: Any
    extra: Any = None


_WITHOUT_EXTRA = frozenset({list, dict})
_TENSOR = int(Kind.TENSOR)
_LARGE_BYTES = 2048
_BY_NAME = (types.FunctionType, types.BuiltinFunctionType, type)

_KNOWN_BY_OBJECT = (*_BY_NAME, types.MethodType, functools.partial, torch.nn.Module)
"""Types of which it depends on the object whether another process has it."""

_COMPLETED = pickle.dumps(CompletedCollective())
_class_names: dict[type, bytes] = {}
_opaque: dict[type, tuple[int, str]] = {}
"""What is written for an instance without a node, of types for which that is all that can be written."""


def class_name(cls: type) -> bytes:
    """Return how pickle finds the class in another process; empty if it does not. Kept, since pickle looks it up each time."""
    known = _class_names.get(cls)
    if known is None:
        known = _class_names[cls] = pickle.dumps(cls) if by_value.is_importable(cls) else b""
    return known


@functools.lru_cache(maxsize=4096)
def _name_of(named: Any) -> bytes:
    return pickle.dumps(named) if by_value.is_importable(named) else b""


_named: Callable[[bytes], Any] = functools.lru_cache(maxsize=4096)(pickle.loads)


class Encoder:
    name_of_class = staticmethod(class_name)

    def __init__(self, state: HostState) -> None:
        self.state = state
        self._trees: list[tuple[int, modules.ModuleTree]] | None = None
        self.weak = False
        """Whether the latest node has weak references: they are no edges, so the node may stay while what they mean moves."""
        self.lacks = False
        """Whether the latest node has elements that could not be written, and is put back only whole."""

    @functools.cached_property
    def running_code(self) -> frozenset[types.CodeType]:
        """Return the code of functions that have not returned, in any thread."""
        found = set()
        for top in sys._current_frames().values():
            frame: types.FrameType | None = top
            while frame is not None:
                found.add(frame.f_code)
                frame = frame.f_back
        return frozenset(found)

    def value(self, value: Any) -> Any:
        cls = type(value)
        if cls in PLAIN:
            return value if cls is not int or value < addresses.FIRST else self.number(value)
        number = self.state.index.get(id(value))
        return (REF, number) if number is not None else self.without_node(value, cls)

    def number(self, value: int) -> Any:
        """Write a number as it is, or by the object that lies there, if the state has one: `shadow[id(parameter)]`."""
        if not addresses.may_be_one(value):
            return value
        self.weak = True  # what lies there can change, and become part of the state, while the number stays as it is
        written = self._at(value)
        return value if written is None else (ADDRESS, written)

    def _at(self, address: int) -> tuple[Any, ...] | None:
        number = self.state.index.get(address)
        if number is not None:
            return (REF, number)
        for root, tree in self._all_trees():
            place = tree.place_at(address)
            if place is not None:
                return (BOUND, root, place)
            name = tree.names_by_id().get(address)
            if name is not None:
                return (PART, root, name)
        found = self._groups.get(address)
        return (GROUPED, *found) if found is not None else self.callable(self.state.without_state.get(address))

    def without_node(self, value: Any, cls: type) -> Any:
        known = _opaque.get(cls)
        if known is not None:
            return known
        kind = kind_of(cls)
        if kind is Kind.PROMISE:  # a collective that goes on is told to the report
            return (SAVE, value.save_id) if issubclass(cls, SaveFuture) else (VALUE, _COMPLETED)
        if kind is Kind.PLAIN and class_name(cls):
            return self._frozen(value, cls) if issubclass(cls, frozenset) else value
        if cls is weakref.ref:
            self.weak = True
            target = self.value(value())
            is_known = type(target) is tuple and target[0] in (REF, BOUND)
            return (WEAK, target) if is_known else (OPAQUE, cls.__qualname__)
        if kind is Kind.TUPLE and class_name(cls):
            return self._tuple(value, cls)
        if cls is RemovableHandle:
            return self._hook_handle(value) or (OPAQUE, cls.__qualname__)
        if kind is Kind.NDARRAY:
            return self.window(value) or (OPAQUE, cls.__qualname__)
        if issubclass(cls, torch.Tensor):
            return self.bound(value) or self.grouped(value) or (OPAQUE, cls.__qualname__)
        if issubclass(cls, _KNOWN_BY_OBJECT):
            made_inside = closures.written(self, value) if cls is types.FunctionType and not _name_of(value) else None
            return self.callable(value) or self.part(value) or made_inside or (OPAQUE, cls.__qualname__)
        return self._constant(value, cls, kind)

    def _tuple(self, value: tuple[Any, ...], cls: type) -> Any:
        items = self.items(tuple_items(value))
        if cls is tuple:
            return (TUPLE, None, items)
        own = self.reference(fields(value))
        return (TUPLE, cls, items) if own is None else (TUPLE, cls, items, own)

    def _frozen(self, value: frozenset[Any], cls: type) -> Any:
        """Write a frozenset as it is, or, where it has objects, by these: copies of them would be others."""
        if keys.is_value(value):
            return value
        return (TUPLE, cls, sorted(self.items(frozenset.__iter__(value)), key=repr))

    def _constant(self, value: Any, cls: type, kind: Kind) -> Any:
        written = by_value.constant(value) if kind in (Kind.OPAQUE, Kind.PLAIN, Kind.FILE) else None
        if written is not None:
            return (VALUE, written)
        form = written_files.form_of(value) if issubclass(cls, io.IOBase) else None
        if form is not None:
            return (FILE, id(value), form)
        if kind is Kind.FILE or (kind is Kind.OPAQUE and (issubclass(cls, io.IOBase) or not by_value.never(cls))):
            return (OPAQUE, cls.__qualname__)
        known = _opaque[cls] = (OPAQUE, cls.__qualname__)
        return known

    def _all_trees(self) -> list[tuple[int, modules.ModuleTree]]:
        if self._trees is None:
            places = [self.state.index[id(root)] for root in self.state.roots]
            self._trees = [(place, self.state.nodes[place].content.tree) for place in places]
        return self._trees

    def reference(self, value: Any) -> tuple[int, int] | None:
        number = self.state.index.get(id(value))
        return None if number is None else (REF, number)

    def bound(self, value: torch.Tensor) -> tuple[Any, ...] | None:
        """Write a parameter or buffer by where it stands, so that it is the same one however it was reached."""
        for number, tree in self._all_trees():
            place = tree.place_of(value)
            if place is not None:
                return (BOUND, number, place)
        return None

    @functools.cached_property
    def _groups(self) -> dict[int, tuple[int, int]]:
        """Return, by a parameter's id, the first node of a parameter group that has it, and its place there."""
        found: dict[int, tuple[int, int]] = {}
        for _, optimizer in self.state.optimizers:
            for group in optimizer.param_groups:
                number = self.state.index.get(id(group))
                if number is not None:
                    for place, parameter in enumerate(group["params"]):
                        found.setdefault(id(parameter), (number, place))
        return found

    def grouped(self, value: torch.Tensor, but: int = -1) -> tuple[Any, ...] | None:
        """Write a parameter that only an optimizer carries by its place there. `but`: that node's own parameters are left to it."""
        found = self._groups.get(id(value))
        if found is None or found[0] == but:
            return None
        self.weak = True  # its place can change without a change of what holds it
        return (GROUPED, *found)

    def window(self, value: Any) -> tuple[Any, ...] | None:
        """Write an array by whose memory it looks into, so that it follows what is written there."""
        owner = self.state.index.get(id(value.base)) if is_window(value) else None
        return None if owner is None else (WINDOW, owner, tuple(window_of(value)))

    def part(self, value: Any) -> tuple[Any, ...] | None:
        if id(value) not in self.state.covered:
            return None
        for number, tree in self._all_trees():
            name = tree.names_by_id().get(id(value))
            if name is not None:
                return (PART, number, name)
        return None

    def callable(self, value: Any) -> tuple[Any, ...] | None:
        cls = type(value)
        if cls is types.BuiltinFunctionType and not isinstance(value.__self__, types.ModuleType | None):
            if by_value.is_standard_stream(value.__self__):
                return (VALUE, by_value.dumps(value))
            # `history.append`, or the end of a `with open(path)` that a generator is in
            owner = self.reference(value.__self__)
            return None if owner is None else (METHOD, owner, value.__name__)
        if isinstance(value, _BY_NAME):
            name = _name_of(value)
            return (NAMED, name) if name else None
        if cls is types.MethodType:
            return (METHOD, self.value(value.__self__), value.__func__.__name__)
        if cls is functools.partial:
            self.weak = self.weak or bool(value.keywords)  # it can be written to while its holder stays as it is
            return (PARTIAL, self.value(value.func), self.items(list(value.args)), self.mapping(value.keywords))
        return None

    def mapping(self, content: dict[Any, Any], *, opaque: bool = True) -> dict[Any, Any]:
        """Write the values of a mapping. `opaque`: whether values that cannot be written are named."""
        without_node = self.without_node
        index = self.state.index
        made: dict[Any, Any] = {}
        for place, (k, v) in enumerate(content.items()):
            key = k if type(k) is str or keys.is_value(k) else keys.write(self, k) or Nth(place)
            if type(v) in PLAIN:
                made[key] = v if type(v) is not int or v < addresses.FIRST else self.number(v)
            elif (number := index.get(id(v))) is not None:
                made[key] = (REF, number)
            else:
                written = without_node(v, type(v))
                if opaque or type(written) is not tuple or written[0] != OPAQUE or _can_be_bound(written):
                    made[key] = written
        return made

    def items(self, content: Iterable[Any]) -> list[Any]:
        value = self.value
        first = addresses.FIRST
        return [v if type(v) in PLAIN and (type(v) is not int or v < first) else value(v) for v in content]

    def is_lost(self, value: Any) -> bool:
        """Return whether no process that lacks the value can make it."""
        return type(value) not in PLAIN and is_lost(self.value(value))

    def elements(self, content: Iterable[Any]) -> list[Any]:
        """Write elements of what another process cannot put back with one of them missing."""
        written = self.items(content)
        self.lacks = any(type(value) is tuple and is_lost(value) for value in written)
        return written

    def node(self, node: StateNode) -> tuple[Any, ...]:
        self.weak = self.lacks = False
        kind = node.kind
        cls = type(node.obj)
        handler = HANDLERS[kind]
        encoded = handler.encode(self, node)
        name = b"" if cls is IMPLIED.get(kind) else class_name(cls)
        extra = handler.extra(self, node) if handler.extra is not None and cls not in _WITHOUT_EXTRA else None
        return (int(kind), name, node.parent, node.key, encoded, extra)

    def tree(self, content: modules.TreeContent) -> tuple[Any, ...]:
        """Write which of the set-up's it is the difference to, or -1; flags, own attributes, small buffers; what `make_module`
        needs; forms of parameters and buffers; numbers of hooks; its modules; attributes of the root that are no state, where
        another process may have to make it.
        """
        tree = content.tree
        base = content.tree.base
        flags = None if base is not None and base.flags == content.flags else content.flags
        found = {tree.slots[place]: content.values[place] for place in content.changed(base)}
        # numbers as they are: the journal of the set-up has them so
        values = {slot: value if type(value) in PLAIN else self.value(value) for slot, value in found.items()}
        names = content.buffers if base is None else tree.changing
        born = self.mapping(tree.hidden_attributes()) if base is None and tree.is_bare() else None
        buffers = {name: content.buffers[name] for name in names if name in content.buffers}
        hooks = tree.hooks if base is None else {}
        parts = module_parts.written(self, tree, self.state.index[id(tree.root)]) if base is None else {}
        is_new = base is None and born is None and module_parts.may_be_new(tree)
        hidden = self.mapping(tree.hidden_attributes()) if is_new else None
        return (
            tree.base_place,
            flags,
            values,
            buffers,
            born,
            tree.forms(content),
            hooks,
            parts,
            hidden,
            self._hooks_of_training(tree),
        )

    def function_form(self, function: types.FunctionType) -> tuple[Any, ...] | None:
        return closures.form_of(self, function)

    def _hooks_of_training(self, tree: modules.ModuleTree) -> dict[tuple[str, str], Any]:
        """Write the hooks of each place where training has registered or removed some."""
        return {
            place: (
                hooks.first,
                [each if isinstance(each, int) else (self.value(each[0]), each[1]) for each in hooks.order],
                hooks.is_full,
            )
            for place, hooks in tree.hooks_of_training().items()
        }

    def hooks_lost(self, tree: modules.ModuleTree) -> list[str]:
        """Return the modules with a hook of training that no other process can make."""
        written = self._hooks_of_training(tree)
        return [
            name
            for (name, _), (_, order, _) in written.items()
            if any(not isinstance(each, int) and is_lost(each[0]) for each in order)
        ]

    def _hook_handle(self, value: RemovableHandle) -> tuple[Any, ...] | None:
        """Write the handle of a module's hook by where that hook is."""
        self.weak = True  # hooks in front of it may be removed
        for number, tree in self._all_trees():
            place = module_hooks.place_of(value, tree.hook_spaces)
            if place is not None:
                return (HOOK, number, place)
        return None


def _can_be_bound(written: tuple[Any, ...]) -> bool:
    """Return whether it is a function that another process can bind to a variable: it shares none with code that goes on."""
    return len(written) > 2 and written[2].is_settled


def is_lost(value: Any) -> bool:
    """Return whether no process can make what was written, or a part of it: only one that has it already can go on with it."""
    if type(value) is not tuple:
        return False
    tag = value[0]
    if tag == OPAQUE:
        return len(value) == 2
    if tag == PARTIAL:
        return any(map(is_lost, (value[1], *value[2], *value[3].values())))
    return any(map(is_lost, value[2] if tag == TUPLE else value[1:2] if tag == METHOD else ()))


def encode(state: HostState) -> Numbered[bytes]:
    """Write the nodes of a state. What an earlier walk has written of a node is taken over with it. Raises PicklingError."""
    nodes = state.nodes
    if state.takes_over:
        memories = shared_memory.find(state, state.renewed | state.fleeting)
        todo: Iterable[int] = state.renewed | state.fleeting | memories.keys()
        state.lacking.difference_update(todo)
        written = copy_of(state.written)
        for _ in range(len(nodes) - len(written)):
            written.append(b"")
        state.blocks = state.blocks + [()] * (_block_count(written) - len(state.blocks))
        for block in {number // shared.PAGE for number in todo}:
            state.blocks[block] = ()
    else:
        todo = range(len(nodes))
        memories = shared_memory.find(state, todo)
        written = [b""] * len(nodes)
        state.lacking = set()
        state.blocks = [()] * _block_count(written)
    encoder = Encoder(state)
    state.fleeting = set()
    for number in todo:
        node = nodes[number]
        kind = node.kind
        if kind is GONE:
            written[number] = b""
            continue
        if kind is TENSOR and type(node.obj) is torch.Tensor:
            content = tuple(node.content) if type(node.content) is TensorValue else node.content
            written[number] = pickled((_TENSOR, b"", node.parent, node.key, content, memories.get(number)))
            continue
        written[number] = pickled(encoder.node(node))
        if encoder.weak:
            state.fleeting.add(number)
        if encoder.lacks:
            state.lacking.add(number)
    state.written = written
    state.encoded = True
    return written


def _block_count(written: Numbered[bytes]) -> int:
    return -(-len(written) // shared.PAGE)


def in_blocks(state: HostState) -> list[bytes]:
    """Return what `encode` has written, in blocks. A block is pickled again only where one of its nodes was. `nodes_in` reads them.

    A large node stands behind its block by itself: another node in the block may be new in each step.
    """
    for block, parts in enumerate(state.blocks):
        if not parts:
            page = page_of(state.written, block)
            small = [data if len(data) < _LARGE_BYTES else None for data in page]
            state.blocks[block] = (pickled(small), *(data for data in page if len(data) >= _LARGE_BYTES))
    return [*itertools.chain.from_iterable(state.blocks)]


def nodes_in(blocks: Sequence[bytes]) -> list[bytes]:
    parts = iter(blocks)
    return [next(parts) if node is None else node for block in parts for node in pickle.loads(block)]


def encode_whole(state: HostState) -> Numbered[bytes]:
    """Write as `encode` does, but leave nothing out that the journal of the set-up has. The state keeps nothing of this."""
    found = [node.content.tree for node in state.nodes if node.kind is Kind.MODULE]
    trees = [(tree, tree.base, tree.base_place) for tree in found]
    for tree in found:
        tree.base = None
        tree.base_place = -1
    state.takes_over = False
    try:
        return encode(state)
    finally:
        state.encoded = False
        for tree, base, place in trees:
            tree.base = base
            tree.base_place = place


def pickled(value: Any) -> bytes:
    """Pickle the value. Raises PicklingError, whatever is wrong with it."""
    try:
        return pickle.dumps(value, pickle.HIGHEST_PROTOCOL)
    except (pickle.PicklingError, AttributeError, TypeError) as e:
        raise pickle.PicklingError(f"a value of the training loop cannot be written down: {e}") from e


def decode(nodes: Iterable[bytes]) -> list[EncodedNode]:
    return [_decode(data) if data else _NOTHING for data in nodes]


def _decode(data: bytes) -> EncodedNode:
    number, name, parent, key, content, extra = pickle.loads(data)
    kind = Kind(number)
    if kind is Kind.TENSOR and type(content) is tuple:
        content = TensorValue(*content)
    return EncodedNode(kind, _named(name) if name else None, parent, key, content, extra)


_NOTHING = EncodedNode(Kind.GONE, None, -1, None, None)
