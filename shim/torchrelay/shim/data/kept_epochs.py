"""Epochs of a DataLoader that keeps its worker processes: their beginning is told, a joiner's workers begin as the lost rank's
did, and those of a rank that goes back to before an epoch's beginning are replaced by new ones.

Leans on what `data_loader` and `kept_workers` lean on, on `_base_seed`, `_collate_fn` and `_shutdown_workers`, and on that an
iterator can be made anew in its place by `__init__`. Seen on torch 2.13.0.
"""

from __future__ import annotations

import functools
from collections import deque
from collections.abc import Callable
from typing import Any

from torchrelay.protocol.errors import StateMismatchError
from torchrelay.shim.capture import rng
from torchrelay.shim.capture.iteration import kept_workers, marks, shared_memory
from torchrelay.shim.capture.iteration.kept_workers import MultiIter
from torchrelay.shim.capture.iteration.loader_order import order_of, set_order
from torchrelay.shim.data.iterator_replay import IteratorReplay
from torchrelay.shim.data.loader_cursor import LoaderCursor
from torchrelay.shim.journal.payload import EpochBegin, LoaderRecord
from torchrelay.shim.script.guard import Guard


def has_hook(iterator: Any) -> bool:
    return isinstance(iterator, MultiIter)


def install(
    draws: IteratorReplay, on_training_thread: Callable[[], bool], expect: Callable[[LoaderCursor], None], guard: Guard
) -> None:
    """Put hooks into the iterator class. `expect`: gives a joiner's iterator the record that it goes by."""
    kept_workers.install()
    original = MultiIter._reset

    def _reset(plain: Callable[..., None], self: Any, loader: Any, first_iter: bool = False) -> None:
        track = draws.tracks.get(self)
        if not self._persistent_workers or not draws.live or not on_training_thread() or (first_iter and not track):
            plain(self, loader, first_iter)
        elif first_iter:
            assert track is not None
            _begin(self, track, functools.partial(plain, self, loader), first=True)
            draws.has_begun(track)
        else:
            _next_epoch(self, track or draws.track(self, loader), functools.partial(plain, self, loader))

    def _next_epoch(iterator: Any, track: LoaderCursor, reset: Callable[..., None]) -> None:
        again = draws.begun_already(track)
        if again is not None:
            _make_again(draws, iterator, track, again)
            return
        is_first = draws.begins(track)
        expect(track)
        if track.target is not None:
            put_shared(track.loader, track.target)
        _begin(iterator, track, reset, first=False)
        draws.has_begun(track)
        if is_first and track.epoch is not None:
            track.again = track.record()
        if draws.on_create is not None:
            draws.on_create(iterator)

    wrapper = functools.wraps(original)(guard.entry(original, _reset))
    setattr(MultiIter, "_reset", wrapper)  # noqa: B010 - mypy forbids the assignment


def _begin(iterator: Any, track: LoaderCursor, reset: Callable[..., None], *, first: bool) -> None:
    """Begin an epoch. `first`: with workers that have just been started."""
    is_seen = kept_workers.are_seen(iterator)
    begin = None if track.target is None else track.target.epoch
    shared = track.data.shared.values() if track.data is not None else ()
    mark = marks.of_data(iterator._dataset, iterator._collate_fn, shared) if is_seen else None
    if first:
        track.mark = mark
    if begin is None and (first or not is_seen):
        reset(first)
        return
    if begin is not None:
        rng.restore(begin.now)
        set_order(track.loader, begin.order)
        iterator._base_seed = begin.base_seed
    now = rng.capture()
    order = order_of(track.loader)
    states = None if begin is None else begin.workers
    workers, whole = kept_workers.begin_epoch(iterator, reset, states, functools.partial(_look_at_shared, track))
    if whole and mark is not None and mark == track.mark:  # else new workers would begin with another data set
        track.epoch = EpochBegin(now, order, iterator._base_seed, workers)
    elif begin is not None:
        raise StateMismatchError("new workers of a data loader with persistent_workers could not be given their state")
    if first:
        track.again = track.record()


def _look_at_shared(track: LoaderCursor) -> None:
    """Note the numbers in shared memory while workers stand between two epochs: once all have answered, none writes to them."""
    if track.data is not None:
        track.shared = shared_memory.content(track.data.shared)


def put_shared(loader: Any, record: LoaderRecord) -> None:
    """Put back the numbers in shared memory that workers begin with. Raises StateMismatchError where something else is there."""
    try:
        shared_memory.put(loader, record.shared)
    except (LookupError, AttributeError, TypeError, ValueError) as e:
        raise StateMismatchError(f"a data loader has not the numbers in shared memory that it had: {e}") from e


def _make_again(draws: IteratorReplay, iterator: Any, track: LoaderCursor, record: LoaderRecord) -> None:
    """Make the same iterator again, with new workers: what it has yielded since the record, it draws again."""
    iterator._shutdown_workers()
    draws.replay.pop(id(iterator), None)
    expected = draws.expected
    draws.expected = deque([(record, False)])
    try:
        type(iterator).__init__(iterator, track.loader)
    finally:
        draws.expected = expected
