"""What is known of one live iterator of a data loader.

Leans on `DataLoader._dataset_kind`. Seen on torch 2.13.0.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import Any

from torch.utils.data.dataloader import _DatasetKind

from torchrelay.shim.capture import rng
from torchrelay.shim.capture.iteration import shared_memory
from torchrelay.shim.capture.iteration.loader_order import HeldLoader, Order
from torchrelay.shim.data.data_state import DataState, SamplerState, State
from torchrelay.shim.data.sampler_rng_log import SamplerRngLog
from torchrelay.shim.journal.payload import EpochBegin, LoaderRecord

_SEVERAL = -1


def is_stream(loader: Any) -> bool:
    """Return whether a loader draws from an IterableDataset in this process: a new process can only draw all of it again."""
    return bool(loader.num_workers == 0 and loader._dataset_kind == _DatasetKind.Iterable)


@dataclass
class LoaderCursor:
    """What is known of one iterator. `skip`: draws that only move the sampler; they return None."""

    held: HeldLoader
    created: rng.RngState
    order: Order
    turns: SamplerRngLog
    began: tuple[int, int]
    """When its epoch began: after how many boundaries and how many times that the rank went back."""
    by: int = 0
    """Which iterator drew from others then, as `IteratorReplay` has it."""
    again: LoaderRecord | None = None
    """How the first epoch began that did so since the boundary; None if that cannot be told."""
    drawn: int = 0
    first: tuple[rng.RngState, Order, bytes] | None = None
    samplers: SamplerState | None = None
    """Before the first draw, as long as that is in progress."""
    before: deque[rng.RngState] = field(default_factory=lambda: deque(maxlen=1))
    """Generators before the latest draws: as many as are still in use somewhere."""
    data: DataState | None = None
    data_before: deque[State] = field(default_factory=lambda: deque(maxlen=1))
    """The same of the data set, where it is in this process."""
    skip: int = 0
    restarted: bool = False
    """An epoch later, with the same worker processes, or with their state."""
    epoch: EpochBegin | None = None
    """How they were when it began, if they tell."""
    mark: bytes | None = None
    """Of the data set that its workers began with, if they can tell how they are."""
    target: LoaderRecord | None = None
    """A joiner's: where the recorded iterator stood."""
    at_once: bool = False
    """Whether its first draw goes to the recorded item: a generator in between looks at what it gets."""
    shared: shared_memory.Content = ()
    """Of its loader, when it was made, before its workers began."""
    over: bool = False
    in_cycle: bool = False
    own_random: bool = False
    """Whether a draw after the first one has used the process's generators: drawn again, it would be another item."""
    is_stream: bool = field(init=False)
    item_mark: bytes = b""
    """Of the item that it has yielded last, as item_mark.mark_of has it; of streams alone."""
    kept_stream: str = ""
    """The attribute of its data set that it draws from, in this process, and that a further iterator would go on with."""
    began_as: int = 0
    """Its epoch's place in `IteratorReplay.began`."""

    def __post_init__(self) -> None:
        self.is_stream = is_stream(self.loader)

    @property
    def loader(self) -> Any:
        return self.held.get()

    def record(self) -> LoaderRecord:
        before = tuple(self.before)
        turns = tuple(self.turns.found)
        data = tuple(self.data_before)
        return LoaderRecord(
            self.created,
            self.order,
            self.drawn,
            self.first,
            before,
            -1,
            self.epoch,
            turns,
            data,
            self.shared,
            self.item_mark,
        )

    def aim(self, record: LoaderRecord) -> None:
        """Let a joiner's iterator be led to where the recorded one stood."""
        self.turns = self.turns.again(record.turns)
        self.target = record

    def begins(self, at: tuple[int, int], by: int) -> bool:
        """Note that another epoch begins. Return whether it is the first one since the boundary."""
        if self.began[0] != at[0]:
            self.began = at
            self.by = by
            self.again = None
            return True
        if by or self.by:
            self.by = _SEVERAL
        return False

    def restart(self) -> None:
        """Begin anew, as another epoch has begun."""
        self.restarted = True
        self.epoch = None
        self.over = False
        self.item_mark = b""
        self.turns = self.turns.again(self.target.turns if self.target is not None else ())
        self.drawn = 0
        self.first = None
        self.before.clear()
        self.data_before.clear()

    def keeps_workers(self) -> bool:
        return bool(getattr(self.loader, "persistent_workers", False))
