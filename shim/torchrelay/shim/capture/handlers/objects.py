"""Handle objects with attributes."""

from __future__ import annotations

import pickle
import threading
from typing import TYPE_CHECKING, Any

from torchrelay.shim.adapters.cpython import thread_locals
from torchrelay.shim.capture.handlers.handler import Handler, attribute, encode_mapping
from torchrelay.shim.capture.models.modules import ModuleTrees
from torchrelay.shim.capture.state.change_detection import only_fields
from torchrelay.shim.capture.state.edges import same_mapping
from torchrelay.shim.capture.state.filled_queues import is_running_thread
from torchrelay.shim.capture.state.host_state import StateNode
from torchrelay.shim.capture.state.parts import attributes, set_attributes
from torchrelay.shim.capture.values import by_value, callables
from torchrelay.shim.capture.values.base_types import make_by_its_class, make_object
from torchrelay.shim.capture.values.kinds import SIGNALS, Kind
from torchrelay.shim.capture.values.replay_point import ABSENT

if TYPE_CHECKING:
    from torchrelay.shim.capture.records.encode import EncodedNode, Encoder
    from torchrelay.shim.capture.records.rebuild import StateRebuild
    from torchrelay.shim.capture.walks.walk import Walk


def _capture(walk: Walk, kind: Kind, obj: Any, parent: int, key: Any) -> None:
    if walk.trees.led.is_below(obj):
        return  # it is where the iterator leads it that draws from it
    content = walk.trees.queues.threads.without_theirs(obj, attributes(obj))
    number = walk.add(kind, obj, parent, key, content)
    walk.push(number, content)
    cls = walk.state.nodes[number].seen = type(obj)
    if "<locals>" in cls.__qualname__ and callables.is_users_class(cls):  # no module leads to it
        walk.edge(number, "__class__", cls)


def _same(trees: ModuleTrees, node: StateNode) -> bool:
    """Return whether it has the same attributes, and is of the class that it was of (`self.__class__ = Warm`)."""
    if type(node.obj) is not node.seen:
        return False
    now = vars(node.obj) if only_fields(type(node.obj)) else attributes(node.obj)
    return same_mapping(trees.queues.threads.without_theirs(node.obj, now), node.content)


def _undo(node: StateNode) -> None:
    is_walked = node.seen is not None  # else it is an item of the data
    if is_walked and type(node.obj) is not node.seen:
        object.__setattr__(node.obj, "__class__", node.seen)
    running = {name: value for name, value in attributes(node.obj).items() if is_running_thread(value)}
    set_attributes(node.obj, {**node.content, **running}, remove_new=True)  # a thread goes on, and is not begun again


def _made_with(encoder: Encoder, node: StateNode) -> bytes | None:
    """Return, pickled, what it takes to make another one: a `threading.local` keeps that for the threads that use it later."""
    if not issubclass(type(node.obj), threading.local):
        return None
    arguments = thread_locals.arguments(node.obj)
    return (None if arguments is None else by_value.dumps(arguments)) or _NOT_TOLD


_NOT_TOLD = b""


def _make(rebuild: StateRebuild, node: EncodedNode) -> Any:
    if node.cls in SIGNALS:
        return node.cls()
    made = None
    if node.cls is not None and not node.extra and not callables.is_users_class(node.cls):
        made = make_by_its_class(node.cls)  # what the script notes on its classes is state by itself
    if made is None and node.cls is not None and node.extra != _NOT_TOLD:
        args, named = pickle.loads(node.extra) if node.extra else ((), {})
        made = make_object(node.cls, args, named)
    if made is None:
        rebuild.lacks(node)
        return ABSENT
    return made


def fill_attributes(rebuild: StateRebuild, node: EncodedNode, obj: Any) -> None:
    set_attributes(obj, rebuild.mapping(node.content, attributes(obj)), remove_new=False)


def _fill(rebuild: StateRebuild, node: EncodedNode, obj: Any) -> None:
    """Fill an object, and take away what the lost rank's had not: this process may have come further in computing it (`probs`)."""
    now = attributes(obj)
    kept = {name: now[name] for name in node.content if name in now}
    content = rebuild.without_threads({**kept, **rebuild.mapping(node.content, now)}, obj)
    set_attributes(obj, content, remove_new=True)


def _child(parent: Any, key: Any) -> Any:
    return type(parent) if key == "__class__" else attribute(parent, key)


HANDLERS = (
    Handler(
        Kind.ATTRS,
        capture=_capture,
        same=_same,
        undo=_undo,
        encode=encode_mapping,
        extra=_made_with,
        make=_make,
        fill=_fill,
        child=_child,
        comes_and_goes=True,
    ),
)
