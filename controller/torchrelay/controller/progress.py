"""Tells how far the job has come, now and then."""

from __future__ import annotations

import dataclasses

from torchrelay.controller.outbox import Outbox
from torchrelay.controller.picture.job import Job
from torchrelay.protocol.events import ProgressMade

EVERY_S = 0.5


class ProgressTeller:
    def __init__(self, job: Job, outbox: Outbox) -> None:
        self._job = job
        self._outbox = outbox
        self._last: ProgressMade | None = None
        self._last_s = 0.0

    def tell(self, now_s: float) -> None:
        """Tell the progress, where there is news, and the last were some time ago."""
        if now_s - self._last_s < EVERY_S:
            return
        job = self._job
        last = self._last
        alive = sum(w.alive for w in job.rank_workers)
        spares = sum(w.warm for w in job.spares)
        made = ProgressMade(job.boundary, round(job.clock.steps_per_s(now_s), 3), alive, spares)
        if last is None or (made.steps, made.ranks, made.spares) != (last.steps, last.ranks, last.spares):
            self._last = made
            self._last_s = now_s
            self._outbox.emit(made)

    def tell_last(self) -> None:
        """Tell the last progress: the steps done since it was told are part of what the job is said to have done."""
        if self._last is not None and self._job.boundary > self._last.steps:
            self._outbox.emit(dataclasses.replace(self._last, steps=self._job.boundary))
