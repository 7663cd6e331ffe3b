"""Tell what code has changed between two walks, in plain values and small tensors, so that another process can use it.

Each value is known by the way that leads to it, as the script would write it.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any, NamedTuple

import torch

from torchrelay.protocol.errors import StateMismatchError
from torchrelay.shim.capture.handlers import HANDLERS
from torchrelay.shim.capture.handlers.optimizers import put_value
from torchrelay.shim.capture.models import optimizer_order
from torchrelay.shim.capture.state.host_state import HostState, Nth, StateNode, path_of
from torchrelay.shim.capture.state.keys import is_value
from torchrelay.shim.capture.values.alike import alike
from torchrelay.shim.capture.values.kinds import PLAIN, Kind
from torchrelay.shim.capture.values.long_list import LongContent
from torchrelay.shim.capture.values.small import SMALL_BYTES, TensorValue

Way = tuple[Any, str]
"""Key of a root (a function's variables, a module's), and the path from there."""

_WHOLE = object()
"""Key of a value that is all that its node holds."""


class HeldValue(NamedTuple):
    """A value of a state; `number`, `key`: the node that holds it, and where."""

    number: int
    key: Any
    value: Any


class Effect(NamedTuple):
    """A change of one value.

    `before`, `after`: empty for nothing, else with one element. `number`: the node that holds it now, or -1.
    """

    before: tuple[Any, ...]
    after: tuple[Any, ...]
    number: int = -1


def effects(then: HostState, now: HostState, within: Collection[int] | None = None) -> dict[Way, Effect]:
    """Return what differs. Both states are of this process, and where both go on from an earlier one, from the same.

    `within`: only in these nodes, and in what is new below them.
    """
    both_go_on = then.takes_over and now.takes_over
    numbers = then.renewed | now.renewed if both_go_on else range(max(len(then.nodes), len(now.nodes)))
    if within is not None:
        numbers = _new_within(then, now, numbers, within)
    before = _differing(then, now, numbers)
    after = _differing(now, then, numbers)
    roots = {node.key for node in then.nodes if node.parent < 0} & {node.key for node in now.nodes if node.parent < 0}
    found = {}
    for way in dict.fromkeys((*before, *after)):
        effect = Effect(_value(before, way), _value(after, way), number=after[way].number if way in after else -1)
        if way[0] in roots and not alike(effect.before, effect.after):
            found[way] = effect
    return found


def _differing(state: HostState, other: HostState, numbers: Iterable[int]) -> dict[Way, HeldValue]:
    """Return the values that these nodes hold, but for those that the same nodes of `other` hold, too."""
    found: dict[Way, HeldValue] = {}
    for number in numbers:
        if number < len(state.nodes):
            node = state.nodes[number]
            there = other.nodes[number] if number < len(other.nodes) else None
            is_same = (
                there is not None and there.obj is node.obj and (there.parent, there.key) == (node.parent, node.key)
            )
            values = _held(node, there.content if is_same and there is not None else None)
            _add_leaves(found, state, number, values)
    return found


def _new_within(then: HostState, now: HostState, numbers: Iterable[int], within: Collection[int]) -> set[int]:
    found: set[int] = set()
    for number in sorted(numbers):
        nodes = [state.nodes[number] for state in (then, now) if number < len(state.nodes)]
        if number in within or any(node.parent in found or node.parent in within for node in nodes):
            found.add(number)
    return found


def leaves(state: HostState, numbers: Iterable[int]) -> dict[Way, HeldValue]:
    """Return the values that these nodes hold."""
    found: dict[Way, HeldValue] = {}
    for number in numbers:
        _add_leaves(found, state, number, _held(state.nodes[number]))
    return found


def _add_leaves(
    found: dict[Way, HeldValue], state: HostState, number: int, values: Iterable[tuple[Any, Any, Any]]
) -> None:
    root = None
    for step, key, value in values:
        root = state.root(number).key if root is None else root
        steps = () if step is _WHOLE else (step,)
        found.setdefault((root, path_of(state.nodes, number, *steps)), HeldValue(number, key, value))


def is_counter(effect: Effect) -> bool:
    """Return whether the value counts up by one, as code does whatever it computes."""
    values = (*effect.before, *effect.after)
    return len(values) == 2 and set(map(type, values)) == {int} and values[1] - values[0] == 1


def tensor_of(state: HostState, leaf: HeldValue) -> torch.Tensor | None:
    """Return the tensor that holds a value; None for a plain one."""
    node = state.nodes[leaf.number]
    if node.kind is Kind.TENSOR:
        return node.obj  # type: ignore[no-any-return]  # its kind tells
    if node.kind is Kind.MODULE and type(leaf.key) is str:
        return dict(node.obj.named_buffers()).get(leaf.key)
    return None


def may_be_computed(effect: Effect) -> bool:
    """Return whether the code may have computed the change. It has not if it is a count, or a first value other than a tensor."""
    if effect.before and effect.after:
        return not is_counter(effect)
    return any(isinstance(value, TensorValue) for value in effect.after)


def is_first_value(effect: Effect) -> bool:
    """Return whether ranks have the same first value without having computed the same, such as zeros that a tensor is made of."""
    return not effect.before and not any(isinstance(v, TensorValue) and not _is_uniform(v) for v in effect.after)


def _is_uniform(value: TensorValue) -> bool:
    count = math.prod(value.shape)
    return count <= 1 or value.data == value.data[: len(value.data) // count] * count


def tensor_path(state: HostState, leaf: HeldValue) -> str:
    """Return the path of the tensor that would be in an optimizer's state there; empty where tensors have no such path."""
    node = state.nodes[leaf.number]
    if node.kind is not Kind.OPTIMIZER_STATE:
        return ""
    optimizer, (place, name) = state.nodes[node.parent].obj, leaf.key
    number = next(n for n, (_, other) in enumerate(state.optimizers) if other is optimizer)
    return f"optimizer{number}.{place}.{name}"


def put(state: HostState, leaf: HeldValue, value: Any) -> None:
    """Put a value in the place of a held value of `state`, which was just walked. From then on `state` has it, too.

    Raises StateMismatchError where that cannot be.
    """
    node = state.nodes[leaf.number]
    if node.kind is Kind.OPTIMIZER_STATE:
        put_value(state.nodes[node.parent].obj, leaf.key, value)
        return
    undo = HANDLERS[node.kind].undo
    if undo is None:
        raise StateMismatchError(f"{state.path(leaf.number)} cannot be written to")
    state.nodes[leaf.number] = replace(node, content=_with(node, leaf.key, value))
    undo(state.nodes[leaf.number])


def _with(node: StateNode, key: Any, value: Any) -> Any:
    content = node.content
    if node.kind is Kind.MODULE:
        if type(key) is str:
            return replace(content, buffers={**content.buffers, key: value})
        values = [*content.values]
        values[content.tree.slots.index(key)] = value
        return replace(content, values=values)
    return value if key is _WHOLE else {**content, key: value}


def _value(found: Mapping[Way, HeldValue], way: Way) -> tuple[Any, ...]:
    return (found[way].value,) if way in found else ()


def _held(node: StateNode, other: Any = None) -> Iterator[tuple[Any, Any, Any]]:
    """Yield steps of a path, which another process finds, too, with their keys and values.

    `other`: another content of the same node, of which the same values are left out.
    """
    content = node.content
    if content is other:
        return
    if node.kind is Kind.TENSOR:
        if isinstance(content, TensorValue) and len(content.data) <= SMALL_BYTES and content != other:
            yield _WHOLE, _WHOLE, content
    elif node.kind is Kind.MODULE:
        yield from ((name, name, value) for name, value in content.buffers.items())
        yield from ((slot, slot, value) for slot, value in zip(content.tree.slots, content.values) if _is_plain(value))
    elif node.kind in _MAPPINGS:
        has = other.get if other is not None else {}.get
        of_state = node.kind is Kind.OPTIMIZER_STATE
        for place, (key, value) in enumerate(content.items()):
            if has(key, _WHOLE) is not value and _is_plain(value) and not (of_state and key == optimizer_order.KEY):
                yield key if is_value(key) else Nth(place), key, value
    elif node.kind in _SEQUENCES:
        items = content.values() if isinstance(content, LongContent) else content
        if isinstance(items, list | deque) and all(map(_is_plain, items)):
            yield _WHOLE, _WHOLE, [*items]


def _is_plain(value: Any) -> bool:
    return type(value) in PLAIN or (type(value) is tuple and all(map(_is_plain, value)))


_MAPPINGS = frozenset(
    {Kind.FRAME, Kind.GLOBALS, Kind.ATTRS, Kind.DICT, Kind.PARAM_GROUP, Kind.OPTIMIZER, Kind.OPTIMIZER_STATE}
)
_SEQUENCES = frozenset({Kind.LIST, Kind.DEQUE})
