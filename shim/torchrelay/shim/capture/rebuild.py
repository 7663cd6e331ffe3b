"""Puts a recorded host state into a process that built its own objects: a joiner at the head of the training loop.

Objects that set-up builds are found by the way that leads to them and updated in place, so that whoever holds them sees the
recorded state; those that were born during training are made.
"""

from __future__ import annotations

import collections
import functools
import pickle
import random
import weakref
from collections.abc import Callable, Sequence
from types import FrameType
from typing import Any

import torch

from torchrelay.protocol.errors import StateMismatchError
from torchrelay.shim.adapters import frames as frame_access
from torchrelay.shim.adapters.dtensor import around, local, spread_of
from torchrelay.shim.capture import callables, optimizer_order, small, undo
from torchrelay.shim.capture.encode import (
    IMPLIED,
    METHOD,
    NAMED,
    OPAQUE,
    PART,
    PARTIAL,
    REF,
    SAVE,
    TUPLE,
    WEAK,
    EncodedNode,
    name_of_definition,
)
from torchrelay.shim.capture.host_state import Deep, Fields, Inside, LargeTensor, Nth
from torchrelay.shim.capture.kinds import Kind, is_value, kind_of
from torchrelay.shim.capture.long_list import decoded
from torchrelay.shim.capture.module_state import make_module, put_bare, put_tree
from torchrelay.shim.capture.parts import attributes
from torchrelay.shim.capture.random_below import follow
from torchrelay.shim.capture.replay_point import ABSENT, ReplayPoint
from torchrelay.shim.save_future import SaveId

_SET_ANEW = (Kind.LOADER, Kind.LOADER_ITER, Kind.DATASET, Kind.DDP)
"""What is made for one use, such as an evaluation's loader, is made again for the next one."""
_GENERATORS = (Kind.TORCH_GENERATOR, Kind.PYTHON_RANDOM, Kind.NUMPY_RANDOM, Kind.NDARRAY)


_OF_FUNCTIONS = ("__defaults__", "__kwdefaults__")


class Rebuild:
    """`frames`: the joiner's frames, outermost first. First `resolve`, then `fill`; `missing` names what has no place here.

    `promised(save)`: what stands for a save that the lost rank waited for, or could have.
    """

    def __init__(
        self,
        frames: Sequence[FrameType],
        module_globals: dict[str, dict[str, Any]],
        promised: Callable[[SaveId], Any],
    ) -> None:
        self._promised = promised
        self._frames = frames
        self._globals = module_globals
        self._nodes: list[EncodedNode] = []
        self.objects: list[Any] = []
        self.missing: list[str] = []
        self._dropped: list[str] = []
        self.last: dict[int, Any] = {}
        """What loader iterators have yielded last, by id."""
        self._methods: dict[tuple[int, str], Any] = {}

    def resolve(self, nodes: list[EncodedNode]) -> None:
        """Finds or makes the object of each node; `objects` may be exchanged before `fill`.

        Raises StateMismatchError where the recorded state cannot be that of this script at this place.
        """
        self._nodes = nodes
        for node in nodes:
            self.objects.append(self._resolve(node))

    def fill(self) -> None:
        for number, node in enumerate(self._nodes):
            if self.objects[number] is not ABSENT:
                if node.kind is Kind.OPTIMIZER_STATE:
                    self._fill_optimizer_state(node.content, self.objects[node.parent])
                else:
                    self._fill(node, self.objects[number])

    def check_complete(self) -> None:
        """Nothing goes missing in silence. Raises StateMismatchError where training has made what cannot be made again."""
        if self._dropped:
            raise StateMismatchError(f"made by training, and cannot be made again: {', '.join(self._dropped[:5])}")

    def _resolve(self, node: EncodedNode) -> Any:
        if node.kind is Kind.GONE:
            return ABSENT
        if node.kind is Kind.FRAME:
            number, name = node.key
            if number >= len(self._frames) or self._frames[number].f_code.co_name != name:
                raise StateMismatchError(f"the recorded training loop runs in {name}(), this process is elsewhere")
            return self._frames[number]
        if node.kind is Kind.GLOBALS:
            return self._globals.get(node.key, ABSENT)
        parent = self.objects[node.parent]
        there = ABSENT if parent is ABSENT else child(self._nodes[node.parent].kind, parent, node.key)
        if there is not ABSENT and _compatible(node, there):
            return there
        return self._make(node)

    def _make(self, node: EncodedNode) -> Any:
        kind, content = node.kind, node.content
        if kind is Kind.TENSOR and content is None:
            self.missing.append(f"view of a parameter {node.key!r}")
            return ABSENT
        if kind is Kind.TENSOR:
            if isinstance(content, LargeTensor):
                part = torch.empty(content.shape, dtype=content.dtype, device=content.device)
                return part if content.spread is None else around(part, content.spread)
            return small.build(content)
        if kind is Kind.TORCH_GENERATOR:
            return torch.Generator()
        if kind is Kind.NDARRAY:
            return content.copy()
        if kind is Kind.DEQUE and node.cls is collections.deque:
            return collections.deque(maxlen=node.extra)
        if kind is Kind.PYTHON_RANDOM and node.cls is random.Random:
            return random.Random()
        if kind is Kind.MODULE and node.cls is not None and content[4] is not None:
            return make_module(node.cls)
        if node.cls is None or kind not in (Kind.LIST, Kind.DICT, Kind.SET, Kind.ATTRS, Kind.BYTEARRAY):
            self.missing.append(f"{kind.name.lower()} {node.key!r}")
            if kind not in _SET_ANEW:
                self._dropped.append(f"{node.key!r} ({_what(node)})")
            return ABSENT
        if kind is Kind.ATTRS:
            return object.__new__(node.cls)
        if node.cls is collections.defaultdict:
            return collections.defaultdict(node.extra)
        made: Any = node.cls
        return made.__new__(made)  # its own `__init__` may want to be told something

    def _decode(self, value: Any, there: Any) -> Any:
        """`there`: what stands in the place now; kept where the recorded value has no state."""
        if type(value) is not tuple:
            return value
        tag = value[0]
        if tag == REF:
            return self.objects[value[1]]
        if tag == TUPLE:
            cls, items = value[1] or tuple, value[2]
            olds = there if isinstance(there, tuple) and len(there) == len(items) else [ABSENT] * len(items)
            parts = [self._decode(v, old) for v, old in zip(items, olds)]
            if any(p is ABSENT for p in parts):
                return there
            return cls(*parts) if hasattr(cls, "_fields") else cls(parts)
        if tag == WEAK:
            target = self.objects[value[1]]
            return there if target is ABSENT else weakref.ref(target)
        if tag == OPAQUE:
            return there
        if tag == PART:
            root = self.objects[value[1]]
            return there if root is ABSENT else root.get_submodule(value[2])
        if tag == SAVE:
            return self._promised(value[1])
        if tag == NAMED:
            return pickle.loads(value[1])
        if tag in (METHOD, PARTIAL):
            return there if there is not ABSENT else self._callable(value)
        raise StateMismatchError(f"the journal holds an unknown tag {tag!r}")

    def _callable(self, value: tuple[Any, ...]) -> Any:
        first = self._decode(value[1], ABSENT)
        if first is ABSENT:
            return ABSENT
        if value[0] == METHOD:
            # One method for all that hold it: lightning copies what it logs with, and knows by identity what not to copy.
            return self._methods.setdefault((id(first), value[2]), getattr(first, value[2], ABSENT))
        arguments = [self._decode(v, ABSENT) for v in value[2]]
        keywords = {k: self._decode(v, ABSENT) for k, v in value[3].items()}
        if any(v is ABSENT for v in (*arguments, *keywords.values())):
            return ABSENT
        return functools.partial(first, *arguments, **keywords)

    def _mapping(self, content: dict[Any, Any], now: dict[Any, Any]) -> dict[Any, Any]:
        decoded = {k: self._decode(v, now.get(k, ABSENT)) for k, v in content.items()}
        return {k: v for k, v in decoded.items() if v is not ABSENT}

    def _items(self, content: list[Any], now: list[Any], what: str) -> list[Any]:
        olds = now if len(now) == len(content) else [ABSENT] * len(content)
        items = [self._decode(v, old) for v, old in zip(content, olds)]
        if any(i is ABSENT for i in items):
            raise StateMismatchError(f"{what}: an element has state that cannot be carried")
        return items

    def _fill(self, node: EncodedNode, obj: Any) -> None:
        kind, content = node.kind, node.content
        if kind is Kind.FRAME:
            frame_access.set_locals(obj, self._mapping(content, obj.f_locals))
        elif kind is Kind.GLOBALS:
            obj.update(self._mapping(content, obj))
        elif kind in (Kind.ATTRS, Kind.OPTIMIZER, Kind.DATASET):
            undo.set_attributes(obj, self._mapping(content, attributes(obj)), remove_new=False)
        elif kind is Kind.LIST and not isinstance(content, list):
            if content is not None:  # None at a gate: as at the boundary
                obj[:] = decoded(*content)
        elif kind is Kind.LIST:
            obj[:] = self._items(content, obj, repr(node.key))
        elif kind is Kind.DEQUE:
            items = self._items(content, list(obj), repr(node.key))
            obj.clear()
            obj.extend(items)
        elif kind is Kind.DICT:
            values = self._mapping(_with_own_keys(content, obj), obj)
            obj.clear()
            obj.update(values)
        elif kind is Kind.PARAM_GROUP:
            obj.update({k: v for k, v in self._mapping(content, obj).items() if k != "params"})
        elif kind is Kind.SET:
            own = {element for element in obj if not is_value(element)}
            obj.clear()
            obj.update(content, own)
        elif kind is Kind.BYTEARRAY:
            obj[:] = content
        elif kind is Kind.TENSOR:
            if isinstance(content, small.TensorValue):
                small.put(content, obj)
        elif kind is Kind.MODULE:
            if content[4] is None:
                put_tree(content, obj, self._decode)
            else:
                put_bare(content, obj, self._mapping)
        elif kind is Kind.DDP:
            obj.__dict__.update(content)
        elif kind is Kind.FUNCTION:
            callables.bind(obj, self._mapping(content, callables.cells(obj)))
        elif kind is Kind.CLASS:
            undo.set_class_attributes(obj, self._mapping(content, dict(vars(obj))))
        elif kind is Kind.REPLAY_POINT:
            self._lead(obj, content)
        elif kind in _GENERATORS:
            undo.put_generator(kind, obj, content)

    def _lead(self, iterator: ReplayPoint, content: dict[str, Any]) -> None:
        now = iterator.place()
        place = self._mapping(content, now)
        if any(place.get(name) is not value and place.get(name) != value for name, value in now.items()):
            iterator.go_to(place, self.last.get(id(place.get("iterator")), ABSENT))

    def _fill_optimizer_state(self, content: dict[tuple[int, str], Any], optimizer: torch.optim.Optimizer) -> None:
        parameters = [p for group in optimizer.param_groups for p in group["params"]]
        for (place, name), value in content.items():
            if place >= len(parameters):
                raise StateMismatchError(
                    f"the optimizer has {len(parameters)} parameters and had more where it was recorded"
                )
            decoded = self._decode(value, ABSENT)
            if name == optimizer_order.NAME:
                optimizer_order.remember(optimizer, place, decoded)
            elif decoded is not ABSENT:
                optimizer.state[parameters[place]][name] = decoded


def _what(node: EncodedNode) -> str:
    if node.kind in (Kind.FUNCTION, Kind.CLASS):
        return f"{node.kind.name.lower()} {node.extra[1]}"
    return node.cls.__name__ if node.cls is not None else "of a local class"


def _with_own_keys(content: dict[Any, Any], now: dict[Any, Any]) -> dict[Any, Any]:
    """Keys that are objects are those that stand in the same places here. Raises StateMismatchError where none does."""
    if not any(type(key) is Nth for key in content):
        return content
    own = list(now)
    found = {}
    for key, value in content.items():
        if type(key) is Nth and (key.place >= len(own) or is_value(own[key.place])):
            raise StateMismatchError("a dict has an object as key that was not there when training started")
        found[own[key.place] if type(key) is Nth else key] = value
    return found


def child(kind: Kind, parent: Any, key: Any) -> Any:
    """What stands at `key` of a node's object now, or ABSENT."""
    if type(key) is Fields:
        return vars(parent) if hasattr(parent, "__dict__") else ABSENT
    if type(key) is Deep:
        try:
            return follow(parent, key)
        except (LookupError, AttributeError, TypeError):
            return ABSENT
    if type(key) is Inside:
        return _inside(child(kind, parent, key.key), key.place)
    if type(key) is Nth:
        values = list(parent.values()) if isinstance(parent, dict) else []
        return values[key.place] if key.place < len(values) else ABSENT
    if kind is Kind.FRAME:
        return parent.f_locals.get(key, ABSENT)
    if kind in (Kind.GLOBALS, Kind.DICT, Kind.PARAM_GROUP):
        return parent.get(key, ABSENT)
    if kind in (Kind.LIST, Kind.DEQUE):
        return parent[key] if isinstance(key, int) and key < len(parent) else ABSENT
    if kind is Kind.MODULE:
        name, attribute = key
        owner = dict(parent.named_modules()).get(name) if name else parent
        return ABSENT if owner is None else owner.__dict__.get(attribute, ABSENT)
    if kind is Kind.OPTIMIZER and key in ("state", "param_groups"):
        return getattr(parent, key)  # properties, where one optimizer stands for another
    if kind is Kind.OPTIMIZER_STATE:
        return ABSENT
    if kind is Kind.REPLAY_POINT:
        return parent.place().get(key, ABSENT)
    if kind is Kind.FUNCTION:
        return getattr(parent, key) if key in _OF_FUNCTIONS else callables.cells(parent).get(key, ABSENT)
    if kind is Kind.CLASS:
        return vars(parent).get(key, ABSENT)
    if kind is Kind.GENERATOR:
        return parent.gi_frame.f_locals.get(key, ABSENT) if parent.gi_frame is not None else ABSENT
    if key == "__class__":
        return type(parent)
    if kind in (Kind.LOADER, Kind.DDP):
        return getattr(parent, key, ABSENT)
    return attributes(parent).get(key, ABSENT)


def _inside(outer: Any, place: int | str) -> Any:
    """In a tuple, or in what is looked through like one; hooks are kept in a dict by numbers that mean nothing elsewhere."""
    if isinstance(place, str):
        return ABSENT if outer is ABSENT else getattr(outer, place, ABSENT)
    if isinstance(outer, dict):
        outer = tuple(outer.values())
    return outer[place] if isinstance(outer, tuple) and place < len(outer) else ABSENT


def _compatible(node: EncodedNode, there: Any) -> bool:
    kind = kind_of(type(there))
    if node.kind is Kind.PARAM_GROUP:
        return kind is Kind.DICT
    if node.kind is Kind.OPTIMIZER_STATE:
        return isinstance(there, dict)
    cls = node.cls or IMPLIED.get(kind)
    if kind is not node.kind or (cls is not None and type(there) is not cls):
        return False
    if node.kind is Kind.DEQUE and there.maxlen != node.extra:
        return False
    if node.kind in (Kind.FUNCTION, Kind.CLASS):
        return bool(node.extra == name_of_definition(there))
    if node.kind is Kind.TENSOR:
        content = node.content
        if content is None:
            return True
        if isinstance(content, LargeTensor):
            same_form = tuple(local(there).shape) == content.shape and there.dtype == content.dtype
            return same_form and spread_of(there) == content.spread
        return small.fits(content, there)
    if node.kind is Kind.NDARRAY:
        return bool(there.shape == node.content.shape and there.dtype == node.content.dtype)
    return True
