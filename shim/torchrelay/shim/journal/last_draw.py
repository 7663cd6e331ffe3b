"""How a loop's iterator was before its latest draw: another process draws that item anew, for real.

What a generator yields cannot be seen in it afterwards, and a batch is too large to be written down in each step. So the
iterator is put to where it stood one draw earlier, with the random generators of that moment, and asked once.
"""

from __future__ import annotations

import copy
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from torchrelay.shim.adapters.cpython import cycles, plain_iterators
from torchrelay.shim.adapters.cpython.csv_readers import lines_of
from torchrelay.shim.capture import rng
from torchrelay.shim.capture.iteration import generator_position as stands
from torchrelay.shim.capture.iteration.loader_order import LoaderIter
from torchrelay.shim.capture.records import after_draw
from torchrelay.shim.capture.records.encode import Encoder, pickled
from torchrelay.shim.capture.state.edges import flat, same_items, same_mapping
from torchrelay.shim.capture.state.host_state import HostState, StateNode
from torchrelay.shim.capture.state.parts import loader_own
from torchrelay.shim.capture.state.random_below import GENERATORS
from torchrelay.shim.capture.state.shared import copy_of_places
from torchrelay.shim.capture.values import item_mark, read_files, small
from torchrelay.shim.capture.values.alike import alike
from torchrelay.shim.capture.values.base_types import length_of
from torchrelay.shim.capture.values.kinds import PLAIN, Kind, kind_of
from torchrelay.shim.journal.payload import LoaderRecord

if TYPE_CHECKING:
    from torchrelay.shim.data.loader_cursor import LoaderCursor

MOST_ITEMS = 1000
"""Of a container that a generator keeps: it is copied in front of each draw."""
MOST_OBJECTS = 1024
"""Beside iterators: meters and buffers that a generator keeps, and that decide what it yields."""
_CONTAINERS = frozenset({Kind.LIST, Kind.DICT, Kind.DEQUE, Kind.SET, Kind.BYTEARRAY})


class LastDraw(NamedTuple):
    """The state before a draw. `nodes`: what takes part in the draw, as it was.

    `records`: by id, of data loaders' iterators among that and of cycles over them, with the loader; `mark`: how many collectives
    had been recorded; `began`: how many iterators of data loaders had begun since the boundary.
    """

    nodes: list[StateNode]
    rng: rng.RngState
    records: dict[int, tuple[LoaderRecord, Any]]
    mark: int = 0
    began: int = 0


class WrittenDraw(NamedTuple):
    """The state before a draw, as a journal has it. `nodes`: by number in the boundary's state, or behind its end.

    `loaders`: the same of data loaders' iterators, None for those that are over.
    """

    nodes: dict[int, bytes]
    rng: rng.RngState
    loaders: dict[int, LoaderRecord | None]
    mark: bytes
    """Of the item, as `item_mark.mark_of` has it."""
    collectives: tuple[Any, ...] = ()
    """That were called in the draw, as FinishedCollective."""
    began: tuple[LoaderRecord | None, ...] = ()
    """Of the iterators of data loaders that began in the draw, as `IteratorReplay.began` has them."""

    def plain(self) -> tuple[Any, ...]:
        loaders = {number: None if record is None else record.plain() for number, record in self.loaders.items()}
        began = [None if record is None else record.plain() for record in self.began]
        return self.nodes, tuple(self.rng), loaders, self.mark, self.collectives, began

    @classmethod
    def of(cls, plain: tuple[Any, ...]) -> WrittenDraw:
        nodes, state, loaders, mark, collectives, began = plain
        records = {number: None if record is None else LoaderRecord.of(record) for number, record in loaders.items()}
        epochs = tuple(None if record is None else LoaderRecord.of(record) for record in began)
        return cls(nodes, rng.RngState(*state), records, mark, collectives, epochs)


def is_drawn_anew(iterator: Any) -> bool:
    """Return whether code of the script's runs in its draws. Loaders, and what only counts their batches, are led forward."""
    kind = kind_of(type(iterator))
    return kind is Kind.GENERATOR or (kind in (Kind.ITERATOR, Kind.ATTRS) and stands.has_generator(iterator))


def before_draw(iterator: Any, track_of: Callable[[Any], LoaderCursor | None]) -> LastDraw | None:
    """Take the state before a draw. `track_of`: of a data loader's iterator, or of a cycle over one.

    None where the state cannot be told.
    """
    nodes: list[StateNode] = []
    records: dict[int, tuple[LoaderRecord, Any]] = {}
    seen = {id(iterator)}
    queue = deque([iterator])
    others = 0
    while queue:
        obj = queue.popleft()
        kind = kind_of(type(obj))
        if kind is Kind.THROUGH:
            queue.append(lines_of(obj))
            continue
        if kind in (Kind.LOADER_ITER, Kind.CYCLE):
            track = track_of(obj)
            if track is not None:
                records[id(obj)] = track.record(), track.loader
            elif kind is Kind.LOADER_ITER or isinstance(cycles.iterator_of(obj), LoaderIter):
                return None
            else:
                kind = Kind.ITERATOR
        taken = _take(kind, obj)
        if taken is None:
            return None
        content, below = taken
        form = read_files.form_of(obj) if kind is Kind.FILE else None
        nodes.append(StateNode(kind, obj, -1, None, content, seen=form))
        for value in below:
            for _, part in flat(None, value):
                is_source = hasattr(type(part), "__next__") and not _is_written_to(part)
                if id(part) not in seen and (is_source or (others < MOST_OBJECTS and _takes_part(part))):
                    seen.add(id(part))
                    queue.append(part)
                    others += not is_source
    return LastDraw(nodes, rng.capture(), records)


def _is_written_to(value: Any) -> bool:
    """Return whether a value is a file that cannot be read from, such as what a progress bar writes to.

    Files are iterators, too.
    """
    return kind_of(type(value)) is Kind.FILE and not read_files.is_open_to_read(value)


def _takes_part(value: Any) -> bool:
    kind = kind_of(type(value))
    if kind in GENERATORS or kind is Kind.ATTRS:
        return True
    if kind is Kind.LOADER:
        return any(own is not None for own in loader_own(value).values())
    if kind in _CONTAINERS:
        return length_of(value) <= MOST_ITEMS
    if kind is Kind.NDARRAY:
        return bool(value.nbytes <= small.SMALL_BYTES and value.dtype.kind != "O")
    if kind is Kind.TENSOR:
        return not isinstance(value, torch.nn.Parameter) and small.is_small(value, small.FRESH_BYTES)
    return False


def _take(kind: Kind, obj: Any) -> tuple[Any, list[Any]] | None:
    """Return the object's content, and what is looked at below it."""
    if kind is Kind.GENERATOR:
        found = stands.standing(obj)
        return None if found is None else (found, [*found.values.values(), *found.cells.values()])
    if kind is Kind.ITERATOR:
        place = plain_iterators.read(obj)
        return None if place is None else (place, [*place.held.values()])
    if kind is Kind.LOADER_ITER:
        return None, []
    if kind is Kind.FILE:
        stand = read_files.place_of(obj) if read_files.is_read(obj) else None
        return None if stand is None else (stand, [])
    if kind is Kind.CYCLE:
        return cycles.stand_of(obj), []
    if kind is Kind.TENSOR:
        return small.take(obj), []
    if kind in (Kind.ATTRS, Kind.LOADER):
        content = after_draw.content_of(kind, obj)
        return content, [*content.values()]
    if kind in _CONTAINERS:
        content = after_draw.content_of(kind, obj)
        return content, [*content.values()] if kind is Kind.DICT else [] if kind is Kind.BYTEARRAY else [*content]
    if kind in GENERATORS or kind is Kind.NDARRAY:
        return after_draw.content_of(kind, obj), []
    return None


def write(
    draw: LastDraw,
    item: Any,
    state: HostState,
    is_over: Callable[[Any], bool],
    collectives: tuple[Any, ...] = (),
    began: tuple[LoaderRecord | None, ...] = (),
) -> WrittenDraw | None:
    """Write the state before a draw for the journal. None where something takes part that no other process would have.

    `item`: what the draw has given; `state`: at the boundary behind the draw; `is_over`: of a data loader's iterator;
    `collectives`: those called in the draw; `began`: as in WrittenDraw.
    """
    number = len(state.nodes)
    numbers = dict[int, int]()
    for node in draw.nodes:
        numbers[id(node.obj)] = state.index.get(id(node.obj), number)
        number += numbers[id(node.obj)] == number
    now = copy.copy(state)
    now.index = copy_of_places(state.index)
    for key, place in numbers.items():
        now.index[key] = place
    encoder = Encoder(now)
    if any(_is_lost(value, now) for node in draw.nodes for value in _values(node)):
        return None
    loaders: dict[int, LoaderRecord | None] = {}
    for node in draw.nodes:
        if id(node.obj) in draw.records:
            record, made_by = draw.records[id(node.obj)]
            loader = state.index.get(id(made_by), -1)
            if loader < 0 and node.kind is Kind.LOADER_ITER and not is_over(node.obj):
                return None
            is_known = loader >= 0 or node.kind is Kind.CYCLE
            loaders[numbers[id(node.obj)]] = record._replace(loader=loader) if is_known else None
    written: dict[int, bytes] = {}
    for node in draw.nodes:
        if not _is_as_it_was(node, state):
            written[numbers[id(node.obj)]] = pickled(encoder.node(node))
            if encoder.lacks:
                return None  # a buffer of more than was looked at
    return WrittenDraw(written, draw.rng, loaders, item_mark.mark_of(item), collectives, began)


def _is_as_it_was(node: StateNode, state: HostState) -> bool:
    """Return whether the draw has left the object alone; the boundary's journal has it then."""
    number = state.index.get(id(node.obj))
    if number is None or node.kind is not state.nodes[number].kind:
        return False
    then = node.content
    now = state.nodes[number].content
    if node.kind in (Kind.ATTRS, Kind.DICT, Kind.LOADER):
        return same_mapping(then, now)
    if node.kind is Kind.LIST or node.kind is Kind.DEQUE:
        return type(now) is list and same_items(then, now)
    return node.kind in (Kind.NDARRAY, Kind.TENSOR) and alike(then, now)


def _values(node: StateNode) -> list[Any]:
    return [*node.content.values.values()] if node.kind is Kind.GENERATOR else []


def _is_lost(value: Any, state: HostState) -> bool:
    """Return whether the value is a large tensor that the draw has used up."""
    if type(value) in PLAIN or not isinstance(value, torch.Tensor):
        return False
    number = state.index.get(id(value))
    return number is None and not isinstance(value, torch.nn.Parameter)
