"""What drawing a batch changes in objects of the script that the loader's data set leads to.

A data set is data, but a script may give it what is state: a list of files that it shuffles, an object that builds examples and
keeps what is left over. A step that is done again is given its batches from the record, and such objects go back to the step's
head with all else. So the record has what each draw has changed in them.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from typing import Any, NamedTuple

from torchrelay.shim.adapters.cpython import generator_frames, plain_iterators
from torchrelay.shim.adapters.raw_memory.list_pointers import pointers
from torchrelay.shim.capture.handlers import HANDLERS
from torchrelay.shim.capture.records.after_draw import content_of, is_put_back, nodes_below, nodes_reached
from torchrelay.shim.capture.state.edges import same_items, same_mapping
from torchrelay.shim.capture.state.host_state import HostState, StateNode
from torchrelay.shim.capture.state.parts import attributes
from torchrelay.shim.capture.state.random_below import MOST_ITEMS, MOST_OBJECTS
from torchrelay.shim.capture.values import callables
from torchrelay.shim.capture.values.alike import alike
from torchrelay.shim.capture.values.base_types import (
    deque_items,
    dict_items,
    length_of,
    list_items,
    set_items,
    tuple_items,
)
from torchrelay.shim.capture.values.kinds import PLAIN, Kind, kind_of
from torchrelay.shim.capture.values.set_content import SetContent
from torchrelay.shim.data.batch_originals import Original, originals_of
from torchrelay.shim.data.item_objects import NONE, ItemObjects, objects_in

_LONG = 4096
"""Entries: a longer list is told by the addresses of what it holds, a longer dict by how much that is; holding all of it would cost
more than most draws. What is made anew within longer ones is not looked into.
"""
_SEQUENCES = (Kind.LIST, Kind.DEQUE)
_ITEMS: dict[Kind, Callable[[Any], Any]] = {
    Kind.LIST: list_items,
    Kind.TUPLE: tuple_items,
    Kind.DEQUE: deque_items,
    Kind.SET: set_items,
    Kind.DICT: lambda value: [*dict_items(value).values()],
}
_MISSING = object()


class _Change(NamedTuple):
    """What a draw has changed in one object.

    `content`: all of it, or of a mapping what is new in it; `gone`: keys that it has no more, None if `content` is all; `within`:
    what new values hold.
    """

    node: StateNode
    content: Any
    gone: frozenset[Any] | None
    within: ItemObjects
    originals: list[Any]

    def again(self) -> None:
        for held in self.within.objects:
            held.put_back()
        for original in self.originals:
            if isinstance(original, Original):
                original.put_back()
        content = self.content
        if self.gone is not None:
            now = content_of(self.node.kind, self.node.obj)
            content = {**{key: value for key, value in now.items() if key not in self.gone}, **content}
        HANDLERS[self.node.kind].undo(replace(self.node, content=content))


class StateBelowData:
    """Objects of the state that a loader's data set and what collates lead to, as they were before one draw."""

    def __init__(self, state: HostState, loader: Any, iterator: Any) -> None:
        """Take the objects as they are now. `iterator`: of the loader, which draws in this process."""
        self._state = state
        roots = _numbers_below(state, loader, iterator)
        known = {*map(id, nodes_below(state, [loader]))} if roots else set()
        found = [node for node in nodes_reached(state, roots) if is_put_back(node) and id(node) not in known]
        if len(found) > MOST_OBJECTS:
            found = []
        nodes = found + [StateNode(o.kind, o.obj, -1, None, o.content) for o in self._born(map(_values, found)).objects]
        self._before = [(node, _taken(node)) for node in nodes]

    def _born(self, values: Iterable[Iterable[Any]]) -> ItemObjects:
        """Return what hangs below values of the state and is none of it: made since the step's head."""
        new = [v for some in values for v in some if type(v) not in PLAIN and id(v) not in self._state.index]
        return objects_in(new, is_within=True, but=self._state.index) if new else NONE

    def done(self) -> Callable[[], None]:
        """Return what puts that which the draw has changed to what it is now."""
        changes = [self._change(node, then) for node, then in self._before if not _is_same(then, _taken(node))]

        def again() -> None:
            for change in changes:
                change.again()

        return again

    def _change(self, node: StateNode, then: Any) -> _Change:
        now = content_of(node.kind, node.obj)
        content = now
        gone = None
        if isinstance(then, dict):
            content = {key: value for key, value in now.items() if then.get(key, _MISSING) is not value}
            gone = frozenset(then.keys() - now.keys())
        within = self._born([content.values() if isinstance(content, dict) else _values(node)])
        return _Change(node, content, gone, within, originals_of(within.tensors, within.arrays, copy=True))


def _taken(node: StateNode) -> Any:
    """Return what tells later whether it has changed."""
    kind = node.kind
    obj = node.obj
    if kind in (Kind.LIST, Kind.DICT) and length_of(obj) > _LONG:
        return length_of(obj) if kind is Kind.DICT else pointers(list_items(obj))
    return [*_ITEMS[kind](obj)] if kind in _SEQUENCES else content_of(kind, obj)


def _is_same(then: Any, now: Any) -> bool:
    if type(then) is list and type(now) is list:
        return same_items(then, now)
    if type(then) is SetContent and type(now) is SetContent:
        return then.same(now)
    return same_mapping(then, now) if type(then) is dict and type(now) is dict else alike(then, now)


def _values(node: StateNode) -> Iterable[Any]:
    """Return what the object of a node holds, but for long containers."""
    kind = node.kind
    obj = node.obj
    if kind is Kind.ATTRS:
        return attributes(obj).values()
    return _ITEMS[kind](obj) if kind in _ITEMS and length_of(obj) <= _LONG else ()


def _numbers_below(state: HostState, loader: Any, iterator: Any) -> list[int]:
    """Return the first objects of the state on each way from what the loader draws from."""
    fetcher = getattr(iterator, "_dataset_fetcher", None)
    queue: deque[Any] = deque([(loader.dataset, loader.collate_fn, getattr(fetcher, "dataset_iter", None))])
    seen: set[int] = set()
    found = []
    while queue and len(seen) < MOST_OBJECTS:
        for value in _parts(queue.popleft()):
            for part in _looked_through(value):
                if type(part) in PLAIN or id(part) in seen:
                    continue
                seen.add(id(part))
                number = state.index.get(id(part))
                if number is None or state.nodes[number].kind is Kind.DATASET:
                    queue.append(part)
                else:
                    found.append(number)
    return found


def _looked_through(value: Any) -> Iterator[Any]:
    """Yield what bound methods and their like stand for."""
    if kind_of(type(value)) is Kind.THROUGH:
        for _, part in callables.parts(value):
            yield from _looked_through(part)
    else:
        yield value


def _parts(obj: Any) -> Iterable[Any]:
    kind = kind_of(type(obj))
    if kind in (Kind.ATTRS, Kind.DATASET):
        return attributes(obj).values()
    if kind is Kind.GENERATOR:
        stand = generator_frames.read(obj) if generator_frames.WORKS else None
        return () if stand is None else stand.slots
    if kind is Kind.ITERATOR:
        place = plain_iterators.read(obj)
        return () if place is None else place.held.values()
    if kind is Kind.FUNCTION:
        return callables.cells(obj).values()
    items = _ITEMS[kind](obj) if kind in _ITEMS else ()
    return items if len(items) <= MOST_ITEMS else ()
