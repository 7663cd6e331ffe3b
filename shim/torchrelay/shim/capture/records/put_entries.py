"""Put single entries of recorded objects back where they stand in this process, which has these objects already."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from torchrelay.shim.capture.records.difference import Difference
from torchrelay.shim.capture.records.encode import EncodedNode
from torchrelay.shim.capture.state.edges import same_items, same_mapping
from torchrelay.shim.capture.state.host_state import HostState, Inside
from torchrelay.shim.capture.state.parts import attributes, set_attributes
from torchrelay.shim.capture.state.tags import REF, TUPLE
from torchrelay.shim.capture.values.base_types import (
    deque_items,
    dict_items,
    list_items,
    make_tuple,
    put_deque_items,
    put_dict_items,
    put_list_items,
)
from torchrelay.shim.capture.values.kinds import Kind


class CannotPutError(Exception):
    """What differs is no single value of a list, a dict, a deque or an attribute."""


def put_entries(
    then: Sequence[EncodedNode], now: HostState, partner: Mapping[int, int], found: Sequence[Difference]
) -> set[str]:
    """Put each entry that differs, as `then` has it. `partner`: node of `then` -> node of `now`.

    Returns the paths of those that were not as recorded, and were right afterwards. Raises CannotPutError where one of them cannot
    be put by itself; others may have been put by then.
    """
    number_of = {there: number for number, there in partner.items()}
    put = set()
    for difference in found:
        number = number_of.get(difference.node)
        if number is None:
            raise CannotPutError(difference.path)
        if _put(then[number], now.nodes[difference.node].obj, _own_key(difference.key), now, partner):
            put.add(difference.path)
    return put


def _own_key(key: Any) -> Any:
    """Return the key of an object's own entry: what stands in a tuple belongs to whoever holds that."""
    while isinstance(key, Inside):
        key = key.key
    return key


def _put(node: EncodedNode, obj: Any, key: Any, now: HostState, partner: Mapping[int, int]) -> bool:
    """Put one entry. Return whether another one was in its place, and it was there right afterwards."""
    content = node.content
    if node.kind is Kind.ATTRS and key in content:
        value = _value(content[key], now, partner)
        was_there = attributes(obj).get(key) is value
        set_attributes(obj, {key: value}, remove_new=False)
        return not was_there and attributes(obj).get(key) is value
    if node.kind is Kind.DICT:
        items = _items(content, dict_items(obj), key, now, partner)
        was_there = same_mapping(dict_items(obj), items)
        put_dict_items(obj, items)
        return not was_there and same_mapping(dict_items(obj), items)
    if node.kind is Kind.LIST and isinstance(content, list):
        entries = _sequence(content, list_items(obj), key, now, partner)
        was_there = same_items(list_items(obj), entries)
        put_list_items(obj, entries)
        return not was_there and same_items(list_items(obj), entries)
    if node.kind is Kind.DEQUE:
        entries = _sequence(content, deque_items(obj), key, now, partner)
        was_there = same_items(deque_items(obj), entries)
        put_deque_items(obj, entries)
        return not was_there and same_items(deque_items(obj), entries)
    raise CannotPutError(str(key))


def _items(
    content: dict[Any, Any], there: dict[Any, Any], key: Any, now: HostState, partner: Mapping[int, int]
) -> dict[Any, Any]:
    if key in content:
        return {**there, key: _value(content[key], now, partner)}
    if key in there:  # it has come to be meanwhile
        return {name: value for name, value in there.items() if name != key}
    raise CannotPutError(str(key))


def _sequence(content: list[Any], there: list[Any], key: Any, now: HostState, partner: Mapping[int, int]) -> list[Any]:
    if key is None:  # it is longer, or shorter
        return [_value(value, now, partner) for value in content]
    return [*there[:key], _value(content[key], now, partner), *there[key + 1 :]]


def _value(value: Any, now: HostState, partner: Mapping[int, int]) -> Any:
    if type(value) is not tuple:
        return value
    if value[0] == REF and value[1] in partner:
        return now.nodes[partner[value[1]]].obj
    if value[0] == TUPLE:
        return make_tuple(value[1] or tuple, [_value(item, now, partner) for item in value[2]])
    raise CannotPutError(str(value[0]))
