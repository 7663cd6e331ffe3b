"""Hooks into the iterators of torch's DataLoader: what was drawn since the boundary can be drawn again, and a joiner's can be led
forward.

Leans on `_BaseDataLoaderIter`: `__init__(loader)`, `__next__`, `_next_index`, `_sampler_iter`, `_num_workers`,
`_dataset_kind`, `_reset`, `_num_yielded`. Seen on torch 2.13.0.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import Any

from torch.utils.data import IterableDataset, dataloader

from torchrelay.protocol.errors import StateMismatchError
from torchrelay.shim.capture import rng
from torchrelay.shim.capture.iteration import data_changes
from torchrelay.shim.capture.iteration.generator_position import direct_sources, sources
from torchrelay.shim.capture.iteration.loader_order import (
    LoaderIter,
    order_again,
    order_generators,
    order_of,
    set_order,
)
from torchrelay.shim.capture.state.parts import attributes
from torchrelay.shim.capture.values import item_mark
from torchrelay.shim.capture.values.alike import alike
from torchrelay.shim.capture.values.replay_point import ReplayPoint
from torchrelay.shim.data import kept_epochs
from torchrelay.shim.data.data_state import DataState, SamplerState
from torchrelay.shim.data.iterator_replay import IteratorReplay
from torchrelay.shim.data.loader_cursor import LoaderCursor
from torchrelay.shim.journal.payload import LoaderRecord
from torchrelay.shim.script.guard import Guard

_COUNT = (enumerate, zip)


def install(draws: IteratorReplay, on_training_thread: Callable[[], bool], guard: Guard) -> None:  # noqa: C901 - four hooks that share their variables
    """Put hooks into the iterator class. They do nothing until `draws.live` or `draws.expected`."""

    def _next_index(plain: Callable[[Any], Any], self: Any) -> Any:
        track = draws.tracks.get(self) if draws.live and on_training_thread() else None
        if track is None or track.is_stream:
            return plain(self)
        return track.turns.ask(track.loader, functools.partial(plain, self))

    def __init__(plain: Callable[[Any, Any], None], self: Any, loader: Any) -> None:
        if not draws.live or not on_training_thread():
            plain(self, loader)
            return
        draws.look_at_generators()
        if draws.recording:  # its draws may change the data set, and so may what the script did before them
            draws.data_changes.look([loader.dataset])
        _track(draws, self, loader)
        streams = _streams(loader)
        plain(self, loader)
        draws.tracks[self].kept_stream = next((n for n, s in _streams(loader).items() if streams.get(n) is s), "")
        draws.leave_generators()
        if draws.on_create is not None:
            draws.on_create(self)

    def _reset(plain: Callable[[Any, Any, bool], None], self: Any, loader: Any, first_iter: bool = False) -> None:
        track = None if first_iter else draws.tracks.get(self)
        if track is not None and not kept_epochs.has_hook(self):
            if draws.begun_already(track) is not None:
                # Its workers have gone on: what it yields would come twice, or not as it was.
                raise StateMismatchError("an epoch of a data loader with persistent_workers cannot be begun again")
            draws.begins(track)
        plain(self, loader, first_iter)
        if track is not None:
            track.restart()

    def __next__(plain: Callable[[Any], Any], self: Any) -> Any:
        if not draws.live or not on_training_thread():
            return plain(self)
        if draws.on_draw is not None:
            draws.on_draw()
        draws.look_at_generators()
        try:
            return draws.draw(self, functools.partial(_advance, draws, plain))
        finally:
            draws.leave_generators()

    for ours in (__init__, __next__, _reset, _next_index):
        original = getattr(LoaderIter, ours.__name__)
        setattr(LoaderIter, ours.__name__, functools.wraps(original)(guard.entry(original, ours)))
    kept_epochs.install(draws, on_training_thread, functools.partial(_expect, draws), guard)


def _track(draws: IteratorReplay, iterator: Any, loader: Any) -> None:
    """Begin to track an iterator before it is made, as its making draws a seed."""
    expected = draws.expected[0] if draws.expected else None
    if expected is not None:
        rng.restore(expected[0].created)
        set_order(loader, expected[0].order)
        kept_epochs.put_shared(loader, expected[0])
    _expect(draws, draws.track(iterator, loader))


def _expect(draws: IteratorReplay, track: LoaderCursor) -> None:
    draws.is_beginning(track)
    expected = draws.expected.popleft() if draws.expected else None
    if expected is None:
        return
    loader = track.loader
    record, may_skip = expected
    track.aim(record)
    track.at_once = draws.at_once
    if may_skip and loader.num_workers == 0 and loader._dataset_kind == dataloader._DatasetKind.Map:
        track.skip = max(record.drawn - len(record.before), 0)


def _advance(draws: IteratorReplay, original_next: Callable[[Any], Any], iterator: Any) -> Any:
    track = draws.tracks.get(iterator)
    if track is None:
        return original_next(iterator)
    if draws.starting is not None:
        if draws.needs_no_item():
            return None
        _check_draws_anew(track)
    return _draw(draws, track, original_next, iterator)


def _draw(draws: IteratorReplay, track: LoaderCursor, original_next: Callable[[Any], Any], iterator: Any) -> Any:
    draws.draws_from(track.loader, iterator)
    in_process = iterator._num_workers == 0
    if in_process:
        draws.data_changes.drawn(track.loader.dataset)
    if track.drawn == 0:
        _begin(draws, track)
    while track.skip > 0:
        track.skip -= 1
        iterator._next_index()
        iterator._num_yielded += 1
        track.drawn += 1
        if not track.at_once:
            return None
    recorded = track.target
    if recorded is not None:
        _lead(track, recorded, original_next, iterator)
    assert track.data is not None
    track.before.append(rng.capture())
    track.data_before.append(track.data.take())
    others = draws.other_generators()
    track.turns.moved = frozenset()
    try:
        item = _next_of(track, original_next, iterator)
    except StopIteration:
        track.over = True
        if in_process:
            draws.data_changes.is_drawn(track.loader.dataset)
        raise
    if track.samplers is not None and track.first is not None:
        track.first = (*track.first[:2], track.samplers.taken())
        track.samplers = None
    _look_at_generators(draws, track, others)
    if track.in_cycle and track.drawn > 0 and rng.capture() != track.before[-1]:
        track.own_random = True
    track.drawn += 1
    if track.is_stream:
        _mark_item(draws, track, item, recorded)
    if in_process and data_changes.is_due(draws.boundary):
        draws.data_changes.has_yielded(track.loader.dataset)
    return item


def _next_of(track: LoaderCursor, original_next: Callable[[Any], Any], iterator: Any) -> Any:
    """Return the next item.

    A stream in this process chooses in each draw what comes next, as a sampler does for other data sets.
    """
    if track.is_stream:
        return track.turns.ask(track.loader, functools.partial(original_next, iterator))
    return original_next(iterator)


def _mark_item(draws: IteratorReplay, track: LoaderCursor, item: Any, recorded: LoaderRecord | None) -> None:
    """Mark the item of a stream. Raises StateMismatchError where the stream has come to another item than the lost rank's."""
    track.item_mark = item_mark.mark_of(item, draws.state_ids())
    if recorded is None or track.drawn != recorded.drawn:
        return
    if track.item_mark and recorded.mark and track.item_mark != recorded.mark:
        raise StateMismatchError(
            f"the data set {type(track.loader.dataset).__name__}, drawn from anew, yields another item here than it did in the "
            f"lost rank, at draw {recorded.drawn}"
        )


def _check_draws_anew(track: LoaderCursor) -> None:
    """Raise StateMismatchError where a draw whose item is not used takes what another iterator of the loader would have yielded."""
    if track.kept_stream:
        raise StateMismatchError(
            f"the data set {type(track.loader.dataset).__name__} goes on with its {track.kept_stream} wherever that stands, and "
            "the script's generator cannot be started without a draw from it"
        )


def _streams(loader: Any) -> dict[str, Any]:
    """Return the iterators that the loader's data set holds, by attribute, where it is drawn from in this process."""
    dataset = loader.dataset
    if not isinstance(dataset, IterableDataset) or loader.num_workers > 0:
        return {}
    return {name: value for name, value in attributes(dataset).items() if hasattr(type(value), "__next__")}


def _look_at_generators(draws: IteratorReplay, track: LoaderCursor, before: Mapping[int, Any]) -> None:
    """Look at the script's generators: whether the draw that is done now has used one that is not known to be its loader's."""
    if before and track.data is not None:
        own = track.data.known | track.turns.moved | order_generators(track.loader)
        now = draws.other_generators()
        track.turns.cannot_be_led |= any(not alike(now.get(a), s) for a, s in before.items() if a not in own)


def _begin(draws: IteratorReplay, track: LoaderCursor) -> None:
    """Note the generators at the first draw, and put back a joiner's: a sampler chooses its order when it is first asked.

    That can be long after the iterator was made.
    """
    if track.target is not None and track.target.first is not None:
        rng.restore(track.target.first[0])
        set_order(track.loader, track.target.first[1])
        _put(SamplerState(track.loader, track.is_stream), track.target.first[2])
    samplers = SamplerState(track.loader, track.is_stream)
    track.first = (rng.capture(), order_of(track.loader), b"")
    track.samplers = samplers
    draws.touched.append(functools.partial(order_again, track.loader))


def _lead(track: LoaderCursor, target: LoaderRecord, original_next: Callable[[Any], Any], iterator: Any) -> None:
    """Lead a joiner's iterator to its recorded place, or by one item towards it, with the generators that were there."""
    while track.at_once and target.drawn - track.drawn > 1:
        _next_of(track, original_next, iterator)
        track.drawn += 1
    left = target.drawn - track.drawn
    if 0 < left <= len(target.before):
        rng.restore(target.before[-left])
        if left <= len(target.data):
            assert track.data is not None
            _put(track.data, target.data[-left])
    if left <= 1:
        track.target = None


def _put(into: DataState | SamplerState, state: Any) -> None:
    try:
        into.put(state)
    except (LookupError, AttributeError, TypeError) as e:
        raise StateMismatchError(f"a data set or sampler has not the random generators that it had: {e}") from e


def passed_through(iterator: Any) -> set[int]:
    """Return which loaders' iterators may yield None on the way, by id: nothing between them and the loop looks at their items."""
    if isinstance(iterator, (LoaderIter, ReplayPoint)):
        return {id(iterator)}
    if type(iterator) not in _COUNT:
        return set()
    return {key for source in direct_sources(iterator) for key in passed_through(source)}


def lets_all_through(iterator: Any) -> bool:
    """Return whether all that the iterator draws from may yield None on the way, as `passed_through` has it."""
    passed = passed_through(iterator)
    return all(type(source) in _COUNT or id(source) in passed for source in sources(iterator))
