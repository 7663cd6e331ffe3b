"""Handle what functions keep of their calls (`functools.lru_cache`), and containers that hold what they have weakly."""

from __future__ import annotations

import weakref
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from torchrelay.shim.adapters.cpython import call_caches
from torchrelay.shim.capture.handlers.handler import Handler, attribute, not_made
from torchrelay.shim.capture.models.modules import ModuleTrees
from torchrelay.shim.capture.state.edges import same_items, same_mapping
from torchrelay.shim.capture.state.host_state import Nth, StateNode
from torchrelay.shim.capture.state.keys import Key, is_value
from torchrelay.shim.capture.state.tags import OPAQUE, TUPLE
from torchrelay.shim.capture.values import callables
from torchrelay.shim.capture.values.base_types import make_object
from torchrelay.shim.capture.values.kinds import PLAIN, Kind
from torchrelay.shim.capture.values.replay_point import ABSENT

if TYPE_CHECKING:
    from torchrelay.shim.capture.records.encode import EncodedNode, Encoder
    from torchrelay.shim.capture.records.rebuild import StateRebuild
    from torchrelay.shim.capture.walks.walk import Walk

_MOST_CALLS = 1024
"""What is kept of more calls is not looked at."""
_WRAPPED = "__wrapped__"


# Calls that are kept.


def _calls(cache: Any) -> dict[Any, Any]:
    found = call_caches.entries(cache)
    return {} if found is None or len(found) > _MOST_CALLS else found


def _capture_calls(walk: Walk, kind: Kind, obj: Any, parent: int, key: Any) -> None:
    function = call_caches.function_of(obj)
    if function is None or not callables.is_users_function(function):
        return
    calls = _calls(obj)
    number = walk.add(kind, obj, parent, key, calls)
    walk.state.nodes[number].seen = call_caches.counts(obj)
    walk.edge(number, _WRAPPED, vars(obj)[_WRAPPED])
    _edges(walk, number, calls)


def _edges(walk: Walk, number: int, content: Mapping[Any, Any]) -> None:
    for place, (name, value) in enumerate(content.items()):
        if type(value) not in PLAIN:
            walk.edge(number, name if is_value(name) else Nth(place), value)
    for key_of, name in callables.elements(content):
        walk.edge(number, key_of, name)


def _same_calls(trees: ModuleTrees, node: StateNode) -> bool:
    return bool(call_caches.counts(node.obj) == node.seen)


def _undo_calls(node: StateNode) -> None:
    if not same_mapping(_calls(node.obj), node.content):
        call_caches.put(node.obj, node.content)


def _encode_calls(encoder: Encoder, node: StateNode) -> Any:
    return encoder.mapping(node.content, opaque=False)


def _fill_calls(rebuild: StateRebuild, node: EncodedNode, obj: Any) -> None:
    """Let the function have the lost rank's results. One that could not be written is computed here anew."""
    now = _calls(obj)
    wanted = {}
    for written, value in node.content.items():
        call = rebuild.decode(written.written, ABSENT) if type(written) is Key else written
        if type(call) is Nth or call is ABSENT:
            continue
        result = rebuild.decode(value, now.get(call, ABSENT))
        if result is not ABSENT:
            wanted[call] = result
    if not same_mapping(now, wanted):
        call_caches.put(obj, wanted)


def _call_result(parent: Any, key: Any) -> Any:
    if key == _WRAPPED:
        return attribute(parent, key)
    calls = _calls(parent)
    return [*calls.values()][key.place] if type(key) is Nth and key.place < len(calls) else calls.get(key, ABSENT)


# Containers that hold weakly: what they have is found elsewhere in the state, or is nobody's any more.

_MOST_HELD = 1024
"""What is longer is data, and no progress."""
_Held = list[tuple[Any, Any]]


def _held(obj: Any) -> _Held:
    """Return what a container holds, in its order. A set's elements are keys, and have no values."""
    if isinstance(obj, weakref.WeakSet):
        return [(element, None) for element in weakref.WeakSet.__iter__(obj)]
    if isinstance(obj, weakref.WeakValueDictionary):
        return [*weakref.WeakValueDictionary.items(obj)]
    return [*weakref.WeakKeyDictionary.items(obj)]


def _references(obj: Any) -> list[Any]:
    """Return what tells whether a container is unchanged: its references, and what is beside them. They keep nothing alive."""
    return [*obj.data, *obj.data.values()] if isinstance(obj.data, dict) else [*obj.data]


def _put(obj: Any, wanted: _Held) -> None:
    obj.data.clear()
    for key, value in wanted:
        if isinstance(obj, weakref.WeakSet):
            weakref.WeakSet.add(obj, key)
        elif isinstance(obj, weakref.WeakValueDictionary):
            weakref.WeakValueDictionary.__setitem__(obj, key, value)
        else:
            weakref.WeakKeyDictionary.__setitem__(obj, key, value)


def _weakly(value: Any, obj: Any, *, is_key: bool) -> Any:
    """Return what a node keeps of a key or a value: it must not keep alive what the container does not."""
    is_weak = isinstance(obj, weakref.WeakValueDictionary) is not is_key
    return weakref.ref(value) if is_weak and not (is_key is False and isinstance(obj, weakref.WeakSet)) else value


def _content(obj: Any) -> _Held:
    return [(_weakly(k, obj, is_key=True), _weakly(v, obj, is_key=False)) for k, v in _held(obj)]


def _alive(content: _Held) -> _Held:
    found = ((k() if type(k) is weakref.ref else k, v() if type(v) is weakref.ref else v) for k, v in content)
    return [*found]


def _capture_weak(walk: Walk, kind: Kind, obj: Any, parent: int, key: Any) -> None:
    if len(obj.data) > _MOST_HELD:
        return
    number = walk.add(kind, obj, parent, key, _content(obj))
    walk.state.nodes[number].seen = _references(obj)
    if isinstance(obj, weakref.WeakKeyDictionary):
        for place, (_, value) in enumerate(_held(obj)):
            if type(value) not in PLAIN:
                walk.edge(number, Nth(place), value)


def _same_weak(trees: ModuleTrees, node: StateNode) -> bool:
    return same_items(_references(node.obj), node.seen)


def _undo_weak(node: StateNode) -> None:
    if not _same_weak(None, node):  # type: ignore[arg-type]
        _put(node.obj, [(key, value) for key, value in _alive(node.content) if key is not None])


def _encode_weak(encoder: Encoder, node: StateNode) -> Any:
    found = [(encoder.value(key), encoder.value(value)) for key, value in _alive(node.content)]
    encoder.weak = True  # what is in it may get another place in the state
    if isinstance(node.obj, weakref.WeakSet):
        return [], [key for key, _ in found if not _is_unknown(key)], 0, None
    return [(TUPLE, None, [*pair]) for pair in found if not any(map(_is_unknown, pair))]


def _is_unknown(written: Any) -> bool:
    return type(written) is tuple and written[0] == OPAQUE


def _make_weak(rebuild: StateRebuild, node: EncodedNode) -> Any:
    made = make_object(node.cls) if node.cls is not None else None
    if made is None:
        return not_made(rebuild, node)
    node.cls.__init__(made)  # type: ignore[misc]
    return made


def _fill_weak(rebuild: StateRebuild, node: EncodedNode, obj: Any) -> None:
    if isinstance(obj, weakref.WeakSet):
        pairs = [(rebuild.decode(element, ABSENT), None) for element in node.content[1]]
    else:
        pairs = [(rebuild.decode(pair[2][0], ABSENT), rebuild.decode(pair[2][1], ABSENT)) for pair in node.content]
    _put(obj, [(key, value) for key, value in pairs if key is not ABSENT and value is not ABSENT])


def _weak_value(parent: Any, key: Any) -> Any:
    held = _held(parent)
    return held[key.place][1] if type(key) is Nth and key.place < len(held) else ABSENT


HANDLERS = (
    Handler(
        Kind.CALLS,
        capture=_capture_calls,
        same=_same_calls,
        undo=_undo_calls,
        encode=_encode_calls,
        fill=_fill_calls,
        child=_call_result,
        comes_and_goes=True,
    ),
    Handler(
        Kind.WEAK,
        capture=_capture_weak,
        same=_same_weak,
        undo=_undo_weak,
        encode=_encode_weak,
        make=_make_weak,
        fill=_fill_weak,
        child=_weak_value,
        comes_and_goes=True,
    ),
)
