"""Takes alarms about numbers, waits a moment for those of other ranks in the same step, and carries the verdict out."""

from __future__ import annotations

from collections.abc import Callable

from torchrelay.controller.decide.detection.numbers import GO_ON, NumberVerdict, decide_numbers
from torchrelay.controller.execution.driver import Driver
from torchrelay.controller.outbox import Outbox
from torchrelay.controller.picture.job import Job
from torchrelay.controller.picture.worker import Worker
from torchrelay.protocol.events import HealthVerdict
from torchrelay.protocol.health import kinds as k
from torchrelay.protocol.messages import NumberAlarm, NumbersDecided
from torchrelay.protocol.names import EXIT_SUSPECT_NUMBER
from torchrelay.protocol.options.numbers import ALERT, STOP
from torchrelay.protocol.words.causes import MigrationCause

GRACE_S = 0.5
"""Ranks compute their numbers at the same place of a step, and none gets past it meanwhile."""


class AnomalyController:
    """`end_job(exit_code, reason)` ends the job."""

    def __init__(self, job: Job, outbox: Outbox, driver: Driver, end_job: Callable[[int, str], None]) -> None:
        self._job = job
        self._outbox = outbox
        self._driver = driver
        self._end_job = end_job
        self._open: dict[int, list[NumberAlarm]] = {}
        self._boundary = -1
        self._since_s = 0.0
        self._tried: set[tuple[int, int]] = set()
        """Boundary and rank of steps that were given to another device."""

    @property
    def is_waiting(self) -> bool:
        return bool(self._open)

    def alarm(self, worker: Worker, alarm: NumberAlarm, now_s: float) -> None:
        if not self._job.is_holder(worker):
            return
        if alarm.action == ALERT:
            self._tell(NumberVerdict(GO_ON, (worker.rank,), alarm.text))
            return
        if alarm.boundary != self._boundary or not self._open:
            self._boundary = alarm.boundary
            self._open = {}
            self._since_s = now_s
        self._open.setdefault(worker.rank, []).append(alarm)

    def tick(self, now_s: float) -> None:
        everybody = all(w.rank in self._open for w in self._job.rank_workers if w.alive)
        if not self._open or (now_s - self._since_s < GRACE_S and not everybody):
            return
        alarms = self._open
        self._open = {}
        tried = {rank for boundary, rank in self._tried if boundary == self._boundary}
        verdict = decide_numbers(alarms, self._job.world_size, tried, self._cannot())
        self._tell(verdict)
        if verdict.action == STOP:
            listed = ", ".join(map(str, verdict.ranks))
            self._end_job(EXIT_SUSPECT_NUMBER, f"rank {listed}: {verdict.reason}")
        elif verdict.action == GO_ON:
            for rank in alarms:
                self._outbox.to_worker(self._job.holders[rank], NumbersDecided(self._boundary))
        else:
            for rank in verdict.ranks:
                self._tried.add((self._boundary, rank))
                self._driver.lose(self._job.holder(rank), verdict.reason, now_s, cause=MigrationCause.NUMBERS)

    def _cannot(self) -> str:
        if because := self._job.unprotected_because():
            return because
        return "" if any(not self._job.quarantined(w) for w in self._job.spares) else "no spare is left"

    def _tell(self, verdict: NumberVerdict) -> None:
        action = {GO_ON: k.WATCH, STOP: k.STOP}.get(verdict.action, k.REPLACE)
        outcome = "told" if verdict.action == GO_ON else "done"
        self._outbox.emit(HealthVerdict(action, "number", "", "", verdict.ranks, outcome, k.NOBODY, verdict.reason))
