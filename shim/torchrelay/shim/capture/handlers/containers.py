"""Handle lists, dicts, sets, deques, byte arrays, and tuples, which have no state of their own."""

from __future__ import annotations

import collections
from dataclasses import replace
from typing import TYPE_CHECKING, Any, cast

from torchrelay.protocol.errors import StateMismatchError
from torchrelay.shim.adapters.cpython.set_tables import SetTable
from torchrelay.shim.capture.handlers.handler import Handler, encode_mapping, of_same_class
from torchrelay.shim.capture.models.modules import ModuleTrees
from torchrelay.shim.capture.state.edges import same_items, same_mapping
from torchrelay.shim.capture.state.host_state import Inside, Nth, StateNode
from torchrelay.shim.capture.state.key_text import text_of
from torchrelay.shim.capture.state.keys import Key, is_value, write
from torchrelay.shim.capture.values import callables, set_content
from torchrelay.shim.capture.values.base_types import (
    deque_items,
    dict_items,
    get_item,
    list_items,
    make_empty,
    put_deque_items,
    put_dict_items,
    put_list_items,
    put_set_items,
    set_items,
)
from torchrelay.shim.capture.values.kinds import PLAIN, Kind
from torchrelay.shim.capture.values.long_list import LONG, LongContent, decoded
from torchrelay.shim.capture.values.replay_point import ABSENT
from torchrelay.shim.capture.values.set_content import SetContent

if TYPE_CHECKING:
    from torchrelay.shim.capture.records.encode import EncodedNode, Encoder
    from torchrelay.shim.capture.records.rebuild import StateRebuild
    from torchrelay.shim.capture.walks.walk import Walk

BULK_LENGTH = 4_096
"""A list or dict that is longer and not of plain values holds data, not progress: it is not walked into."""


# Lists and deques.


def _capture_list(walk: Walk, kind: Kind, obj: Any, parent: int, key: Any) -> None:
    items = list_items(obj)
    if len(items) >= LONG:
        content = walk.trees.long_lists.look(obj)
        if content is not None:
            walk.add(kind, obj, parent, key, _since_boundary(walk, content))
            return
    if len(items) > BULK_LENGTH:
        walk.data(obj, len(items), parent, key)
        return
    _capture_items(walk, kind, obj, parent, key, items)


def _capture_deque(walk: Walk, kind: Kind, obj: Any, parent: int, key: Any) -> None:
    _capture_items(walk, kind, obj, parent, key, deque_items(obj))


def _capture_items(walk: Walk, kind: Kind, obj: Any, parent: int, key: Any, items: list[Any]) -> None:
    number = walk.add(kind, obj, parent, key, items)
    walk.fields(number, obj)
    for place, value in enumerate(items):
        if type(value) not in PLAIN:
            walk.edge(number, place, value)


def _since_boundary(walk: Walk, content: LongContent) -> LongContent:
    before = walk.content_before(content.seen.obj)
    same = isinstance(before, LongContent) and before.seen is content.seen and before.length == content.length
    return replace(content, same_as_before=same)


def _same_list(trees: ModuleTrees, node: StateNode) -> bool:
    obj = node.obj
    content = node.content
    if type(content) is list:
        return same_items(obj if type(obj) is list else list_items(obj), content)
    now = trees.long_lists.look(obj)
    return now is not None and now.seen is content.seen and bool(now.length == content.length)


def _same_deque(trees: ModuleTrees, node: StateNode) -> bool:
    return same_items(deque_items(node.obj), node.content)


def _undo_list(node: StateNode) -> None:
    content = node.content
    if isinstance(content, LongContent):
        if not content.is_in(node.obj):
            put_list_items(node.obj, content.values())
    elif not _alike(list_items(node.obj), content):
        put_list_items(node.obj, content)


def _undo_deque(node: StateNode) -> None:
    if not _alike(deque_items(node.obj), node.content):
        put_deque_items(node.obj, node.content)


def _encode_list(encoder: Encoder, node: StateNode) -> Any:
    content = node.content
    if isinstance(content, LongContent):
        return None if content.same_as_before else content.encoded()
    return encoder.elements(content)


def _encode_deque(encoder: Encoder, node: StateNode) -> Any:
    return encoder.elements(node.content)


def _make_empty(rebuild: StateRebuild, node: EncodedNode) -> Any:
    if node.cls is None:
        rebuild.lacks(node)
        return ABSENT
    return make_empty(node.cls)


def _make_deque(rebuild: StateRebuild, node: EncodedNode) -> Any:
    made = _make_empty(rebuild, node)
    if made is not ABSENT:
        collections.deque.__init__(made, (), node.extra)
    return made


def _fill_list(rebuild: StateRebuild, node: EncodedNode, obj: Any) -> None:
    content = node.content
    if isinstance(content, list):
        put_list_items(obj, rebuild.items(content, list_items(obj), text_of(node.key)))
    elif content is not None:  # None at a gate: as at the boundary
        put_list_items(obj, decoded(*content))


def _fill_deque(rebuild: StateRebuild, node: EncodedNode, obj: Any) -> None:
    put_deque_items(obj, rebuild.items(node.content, deque_items(obj), text_of(node.key)))


def _deque_fits(node: EncodedNode, there: Any) -> bool:
    return of_same_class(node, there) and bool(there.maxlen == node.extra)


def _list_item(parent: Any, key: Any) -> Any:
    return list.__getitem__(parent, key) if isinstance(key, int) and key < list.__len__(parent) else ABSENT


def _deque_item(parent: Any, key: Any) -> Any:
    items = deque_items(parent)
    return items[key] if isinstance(key, int) and key < len(items) else ABSENT


# Dicts.


def _capture_dict(walk: Walk, kind: Kind, obj: Any, parent: int, key: Any) -> None:
    content = dict_items(obj)
    if len(content) > BULK_LENGTH and type(next(iter(content.values()))) not in PLAIN:
        walk.data(obj, len(content), parent, key)
        return
    number = walk.add(kind, obj, parent, key, content)
    walk.fields(number, obj)
    for place, (name, value) in enumerate(content.items()):
        if type(value) not in PLAIN:
            walk.edge(number, name if is_value(name) else Nth(place), value)
    for key_of, name in callables.elements(content):
        walk.edge(number, key_of, name)


def same_dict(trees: ModuleTrees, node: StateNode) -> bool:
    obj = node.obj
    return same_mapping(obj if type(obj) is dict else dict_items(obj), node.content)


def undo_dict(node: StateNode) -> None:
    if not _alike([*dict_items(node.obj).items()], [*node.content.items()]):
        put_dict_items(node.obj, node.content)


def _make_dict(rebuild: StateRebuild, node: EncodedNode) -> Any:
    factory = rebuild.decode(node.extra, ABSENT)
    if factory is ABSENT:
        rebuild.lacks(node)
        return ABSENT
    made = _make_empty(rebuild, node)
    if factory is not None and made is not ABSENT:
        collections.defaultdict.__init__(made, factory)
    return made


def _fill_dict(rebuild: StateRebuild, node: EncodedNode, obj: Any) -> None:
    now = dict_items(obj)
    put_dict_items(obj, rebuild.mapping(_with_own_keys(rebuild, node, now), now))


def _with_own_keys(rebuild: StateRebuild, node: EncodedNode, now: dict[Any, Any]) -> dict[Any, Any]:
    """Return the content with this process's keys. Raises StateMismatchError where it has none that could be meant.

    In place of a key that could not be written down stands the key in the same place here.
    """
    content = node.content
    if not any(type(key) in (Key, Nth) for key in content):
        return cast("dict[Any, Any]", content)
    own = list(now)
    found = {}
    for place, (key, value) in enumerate(content.items()):
        meant = rebuild.decode(key.written, ABSENT) if type(key) is Key else ABSENT if type(key) is Nth else key
        if meant is ABSENT and place < len(own) and not is_value(own[place]):
            meant = own[place]
        if meant is ABSENT:
            raise StateMismatchError(f"{rebuild.path(node)}: training has added a key that no other process can know")
        found[meant] = value
    return found


def dict_item(parent: Any, key: Any) -> Any:
    return get_item(parent, key, ABSENT)


# Sets, and byte arrays.


def _capture_set(walk: Walk, kind: Kind, obj: Any, parent: int, key: Any) -> None:
    content = SetContent(obj)
    ordered, apart = callables.split_by_order(callables.elements(content))
    number = walk.add(kind, obj, parent, key, content)
    walk.fields(number, obj)
    for key_of, element in ordered:
        walk.edge(number, key_of, element)
    walk.without_order += [(number, key_of, element) for key_of, element in apart]


def _same_set(trees: ModuleTrees, node: StateNode) -> bool:
    return bool(node.content.is_in(node.obj))


def _undo_set(node: StateNode) -> None:
    if not node.content.is_in(node.obj):
        node.content.put(node.obj)


def _encode_set(encoder: Encoder, node: StateNode) -> Any:
    """Return its plain values, its other elements that can be written, how many cannot be written, and its table.

    There is a table where all elements are plain values: what other elements have for a hash is another number elsewhere.
    """
    items = node.content.items
    values = [element for element in items if is_value(element)]
    written = [write(encoder, element) for element in items if not is_value(element)]
    others = [key for key in written if type(key) is not int]
    values += [number for number in written if type(number) is int]
    table = None if others else node.content.table
    return values, [key for key in others if key is not None], others.count(None), table and [*table]


def _fill_set(rebuild: StateRebuild, node: EncodedNode, obj: Any) -> None:
    """Fill a set. Elements that could not be written are those of this process, if it has as many.

    Raises StateMismatchError.
    """
    values, others, unknown, table = node.content
    meant = [rebuild.decode(key.written, ABSENT) for key in others]
    found = [element for element in meant if element is not ABSENT]
    unknown += len(meant) - len(found)
    known = {*values, *found}
    own = [element for element in set_items(obj) if not is_value(element) and element not in known] if unknown else []
    if len(own) != unknown:
        raise StateMismatchError(
            f"{rebuild.path(node)}: {unknown} elements of a set are known by nothing but themselves, and there are {len(own)} here"
        )
    if others or unknown:
        put_set_items(obj, [*known, *own])
    else:
        set_content.put(obj, values, table and SetTable(*table))


def _capture_bytes(walk: Walk, kind: Kind, obj: Any, parent: int, key: Any) -> None:
    walk.fields(walk.add(kind, obj, parent, key, bytes(memoryview(obj))), obj)


def _same_bytes(trees: ModuleTrees, node: StateNode) -> bool:
    return bytes(memoryview(node.obj)) == bytes(node.content)


def _undo_bytes(node: StateNode) -> None:
    bytearray.__setitem__(node.obj, slice(None), node.content)


def _fill_bytes(rebuild: StateRebuild, node: EncodedNode, obj: Any) -> None:
    bytearray.__setitem__(obj, slice(None), node.content)


# Tuples.


def capture_inside(walk: Walk, kind: Kind, obj: Any, parent: int, key: Any) -> None:
    """Look into a tuple: it has no state of its own, but what it holds may have. So with bound methods and their like."""
    for place, value in enumerate(obj) if type(obj) is tuple else callables.parts(obj):
        if type(value) not in PLAIN:
            walk.queue.append((parent, Inside(key, place), value))


def _alike(now: list[Any], then: list[Any]) -> bool:
    if len(now) != len(then):
        return False
    return all(
        a is b or (type(a) is tuple and type(b) is tuple and _alike(list(a), list(b))) for a, b in zip(now, then)
    )


def _maxlen(encoder: Encoder, node: StateNode) -> Any:
    return node.obj.maxlen


def _default_factory(encoder: Encoder, node: StateNode) -> Any:
    obj = node.obj
    return encoder.value(obj.default_factory) if issubclass(type(obj), collections.defaultdict) else None


HANDLERS = (
    Handler(
        Kind.LIST,
        capture=_capture_list,
        same=_same_list,
        undo=_undo_list,
        encode=_encode_list,
        make=_make_empty,
        fill=_fill_list,
        child=_list_item,
        comes_and_goes=True,
    ),
    Handler(
        Kind.DEQUE,
        capture=_capture_deque,
        same=_same_deque,
        undo=_undo_deque,
        encode=_encode_deque,
        extra=_maxlen,
        make=_make_deque,
        fits=_deque_fits,
        fill=_fill_deque,
        child=_deque_item,
        comes_and_goes=True,
    ),
    Handler(
        Kind.DICT,
        capture=_capture_dict,
        same=same_dict,
        undo=undo_dict,
        encode=encode_mapping,
        extra=_default_factory,
        make=_make_dict,
        fill=_fill_dict,
        child=dict_item,
        comes_and_goes=True,
    ),
    Handler(
        Kind.SET,
        capture=_capture_set,
        same=_same_set,
        undo=_undo_set,
        encode=_encode_set,
        make=_make_empty,
        fill=_fill_set,
        comes_and_goes=True,
    ),
    Handler(
        Kind.BYTEARRAY,
        capture=_capture_bytes,
        same=_same_bytes,
        undo=_undo_bytes,
        make=_make_empty,
        fill=_fill_bytes,
        comes_and_goes=True,
    ),
    Handler(Kind.TUPLE, capture=capture_inside),
    Handler(Kind.THROUGH, capture=capture_inside),
)
