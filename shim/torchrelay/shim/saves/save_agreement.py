"""After a migration: whether a save is whole, or has to be begun again, as all ranks know it together.

A save's last communication tells every rank that all have done their parts. So it is whole as soon as one rank is through with
it; as long as none is, all can do it again, from the same state, over whatever they had written of it.
"""

from __future__ import annotations

import enum
import json
import threading
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from torchrelay.shim.script.save_future import SaveId


class SaveVerdict(enum.Enum):
    AGAIN = "again"
    WHOLE = "whole"
    LOST = "lost"


@dataclass(frozen=True)
class SaveReport:
    """What one rank knows of saves.

    `begun`: group -> how many saves; `under_way`: save -> whether it has all that it was to save.
    """

    begun: Mapping[str, int]
    under_way: Mapping[SaveId, bool]
    failed: frozenset[SaveId] = frozenset()

    def encoded(self) -> str:
        under_way = [[*save, complete] for save, complete in self.under_way.items()]
        return json.dumps([dict(self.begun), under_way, [[*save] for save in self.failed]])

    @classmethod
    def of(cls, text: str) -> SaveReport:
        begun, under_way, failed = json.loads(text)
        known = {SaveId(group, number): complete for group, number, complete in under_way}
        return cls(begun, known, frozenset(SaveId(*save) for save in failed))


def decide(save: SaveId, reports: Mapping[int, SaveReport]) -> tuple[SaveVerdict, str]:
    """Decide what becomes of a save, and return the reason too. `reports`: of the ranks that it communicates between."""
    ended = None
    without = None
    for rank, report in reports.items():
        if save in report.failed:
            return SaveVerdict.LOST, f"it failed on rank {rank}"
        if report.begun.get(save.group, 0) < save.number:
            continue
        if save not in report.under_way:
            ended = rank
        elif not report.under_way[save]:
            without = rank
    if ended is not None:
        return SaveVerdict.WHOLE, f"rank {ended} was through with it"
    if without is not None:
        return SaveVerdict.LOST, f"rank {without} was lost, and what it was about to save is gone with it"
    return SaveVerdict.AGAIN, "no rank was through with it"


class SaveAgreement:
    """The reports of one generation's ranks, exchanged through its store."""

    def __init__(self, generation: int, rank: int, world_size: int, store: Any) -> None:
        self._keys = [f"torchrelay/saves/{generation}/{number}" for number in range(world_size)]
        self._rank = rank
        self._store = store
        self._lock = threading.Lock()
        self._reports: list[SaveReport] | None = None

    def publish(self, report: SaveReport) -> None:
        """Publish this rank's report. Raises RuntimeError when the store is gone."""
        self._store.set(self._keys[self._rank], report.encoded())

    def decide(self, save: SaveId, ranks: Iterable[int]) -> tuple[SaveVerdict, str]:
        """Wait for all ranks' reports, and decide. Raises RuntimeError when the store is gone."""
        with self._lock:
            if self._reports is None:
                self._reports = [SaveReport.of(data.decode()) for data in self._store.multi_get(self._keys)]
        return decide(save, {rank: self._reports[rank] for rank in ranks})
