"""A joiner's iterators that are kept in variables, led to where the lost rank's stood: of data loaders, and what draws from them.

Leans on what `data_loader` and `cycles` lean on, on `DataLoader._iterator`, where one with kept workers is, and on
`_MultiProcessingDataLoaderIter._shutdown_workers`, which waits for them. Seen on torch 2.13.0 and 2.14.1.
"""

from __future__ import annotations

from typing import Any

from torch.utils.data import DataLoader
from torch.utils.data.dataloader import _MultiProcessingDataLoaderIter as WorkersIter

from torchrelay.protocol.errors import StateMismatchError
from torchrelay.shim.adapters.cpython import cycles
from torchrelay.shim.data.iterator_replay import IteratorReplay
from torchrelay.shim.journal.payload import LoaderRecord


def rebuild(draws: IteratorReplay, loader: Any, record: LoaderRecord, of_set_up: Any) -> tuple[Any, Any]:
    """Make an iterator for a joiner, as the lost rank's was made, and lead it to where that stood. It was kept in a variable.

    `of_set_up`: what stands in its place. Returns the new one and the item that it has yielded last.
    """
    draws.expected.append((record, True))
    if record.shared:
        _end_workers(of_set_up)
    if getattr(loader, "persistent_workers", False):
        loader._iterator = None  # what set-up made of it has not the place that is told of
    # a class's own `__iter__` may return something else: itself, a generator
    made = DataLoader.__iter__(loader)
    item = None
    while draws.tracks[made].drawn < record.drawn:
        item = next(made)
    return made, item


def _end_workers(iterator: Any) -> None:
    """Let the workers of set-up's iterator end: they would go on to count in the shared memory that the new one's workers count in.

    They come to an end by themselves: one that was killed might hold the lock.
    """
    if isinstance(iterator, WorkersIter):
        iterator._shutdown_workers()


def lead_cycle(draws: IteratorReplay, cycle: Any, place: cycles.CyclePlace, record: LoaderRecord, loader: Any) -> None:
    """Put a joiner's cycle to the place of the recorded one: its first pass is drawn again.

    `loader`: the one that it draws from. Raises StateMismatchError where that has other items here.
    """
    draws.expected.append((record, False))
    if record.shared:
        _end_workers(cycles.iterator_of(cycle))
    if getattr(loader, "persistent_workers", False):
        loader._iterator = None  # what set-up made of it has not the place that is told of
    made = DataLoader.__iter__(loader)
    kept = [item for _, item in zip(range(place.kept), made)]
    if len(kept) < place.kept:
        raise StateMismatchError(
            f"an itertools.cycle does not come to its place here: its first pass had {place.kept} items, and has {len(kept)}"
        )
    cycles.put(cycle, place, made, kept)
    draws.watch_cycle(cycle, draws.tracks[made])
