"""Compares ranks in a migration, before it is committed, and in the steps that follow it; a difference ends the job."""

from __future__ import annotations

from torchrelay.controller.decide.migration.apart import Alike, Apart, alike, apart
from torchrelay.controller.execution.driver import Driver
from torchrelay.controller.migration import events as m
from torchrelay.controller.outbox import Outbox
from torchrelay.controller.picture.job import Job
from torchrelay.controller.picture.worker import Worker
from torchrelay.protocol.events import HealthVerdict
from torchrelay.protocol.health import kinds as k
from torchrelay.protocol.messages import Head, ReplicaCheck
from torchrelay.protocol.words.phases import Phase

LOOKS_AFTER = 16
"""Steps after a migration in which ranks are compared with what they were before it."""
_BEFORE_COMMIT = (Phase.REBUILDING, Phase.VERIFYING)


class Divergence:
    def __init__(self, job: Job, outbox: Outbox, driver: Driver) -> None:
        self._job = job
        self._outbox = outbox
        self._driver = driver
        self._target = -1
        self._alike: Alike = {}
        self._alike_at_target: Alike = {}
        """`_alike` with tensors alike since no step had written to them: the next may write another thing in each rank."""
        self._told: dict[Head, dict[int, ReplicaCheck]] = {}
        """Head -> rank -> what it holds there, since the target of the latest migration."""
        self._found: Apart | None = None

    def told(self, worker: Worker, check: ReplicaCheck) -> None:
        """Compare what a rank says it holds. To be called before the job takes note of it."""
        migration = self._driver.migration
        if migration is not None and migration.state.phase in _BEFORE_COMMIT:
            self._begin(migration.state.target)
        if not self._alike_at_target or not self._target <= check.boundary <= self._target + LOOKS_AFTER:
            return
        if 0 < self._target <= check.since:
            if check.since < check.boundary:
                self._forget()  # paths mean other tensors than before the migration
            return  # the loop that begins here may only stand in, and then this boundary is told of anew
        here = self._told.setdefault(check.at, {})
        here[worker.rank] = check
        known = self._alike_at_target if check.boundary == self._target else self._alike
        self._found = self._found or apart(known, here)

    def committed(self, target: int) -> None:
        """Take note that a migration is in force: its ranks go on from `target`."""
        self._begin(target)

    def _begin(self, target: int) -> None:
        if target == self._target:
            return
        self._target = target
        self._told = {}
        job = self._job
        checks = {rank: (*job.checks_left.get(rank, ()), *known) for rank, known in job.checks.items()}
        self._alike, self._alike_at_target = (alike(checks, target, unwritten=unwritten) for unwritten in (False, True))

    def _forget(self) -> None:
        self._alike = {}
        self._alike_at_target = {}

    def settle(self, now_s: float) -> None:
        """End the job if ranks differ, as soon as the migration in which that was found allows."""
        migration = self._driver.migration
        if self._found is None or (migration is not None and migration.state.phase not in _BEFORE_COMMIT):
            return
        found = self._found
        self._found = None
        self._forget()
        reason = found.reason()
        self._outbox.emit(HealthVerdict(k.STOP, "replicas", "", found.path, found.ranks, "done", k.NOBODY, reason))
        self._driver.diverged(m.Diverged(found.ranks[0], reason), now_s)
