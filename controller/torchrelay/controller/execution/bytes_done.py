"""Tells how far a migration is that moves tensors, from what each process says, with the rate and the time left."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable

from torchrelay.controller.outbox import Outbox
from torchrelay.protocol.events import MigrationProgressed
from torchrelay.protocol.messages import BytesDone, MigrationProgress
from torchrelay.protocol.words.phases import Phase

EVERY_S = 1.0
"""Time between two events, however many processes tell of themselves."""
MOVES_TENSORS = (Phase.TRANSFERRING, Phase.CHECKPOINTING)


def progress(migration: str, phase: Phase, told: Iterable[BytesDone], elapsed_s: float) -> MigrationProgress:
    """Put together what processes have told `elapsed_s` after the phase began. Pure."""
    told = list(told)
    total = sum(one.total_bytes for one in told)
    done = sum(min(one.done_bytes, one.total_bytes) for one in told)
    rate = done / elapsed_s if elapsed_s > 0 else 0.0
    left_s = (total - done) / rate if rate > 0 else -1.0
    return MigrationProgress(migration, phase.value, done, total, round(elapsed_s, 3), round(rate, 3), round(left_s, 3))


class BytesTold:
    """What was told of the migration that is under way. Words of another generation are not of it."""

    def __init__(self, outbox: Outbox) -> None:
        self._outbox = outbox
        self._migration = ""
        self._generation = 0
        self._phase = Phase.HEALTHY
        self._since_s = self._emitted_s = 0.0
        self._told: dict[str, BytesDone] = {}
        self.now: MigrationProgress | None = None

    def phase_entered(self, migration: str, generation: int, phase: Phase, now_s: float) -> None:
        self._migration = migration
        self._generation = generation
        self._phase = phase
        self._since_s = self._emitted_s = now_s
        self._told.clear()
        self.now = None

    def take(self, worker: str, report: BytesDone, now_s: float) -> None:
        if report.generation != self._generation or self._phase not in MOVES_TENSORS:
            return  # it was on its way when the phase ended
        self._told[worker] = report
        self.now = progress(self._migration, self._phase, self._told.values(), now_s - self._since_s)
        if now_s - self._emitted_s >= EVERY_S:
            self._emitted_s = now_s
            self._outbox.emit(MigrationProgressed(**dataclasses.asdict(self.now)))

    def done(self, worker: str) -> None:
        """Take note that the worker has read or written everything."""
        if (last := self._told.get(worker)) is not None:
            self._told[worker] = dataclasses.replace(last, done_bytes=last.total_bytes)
