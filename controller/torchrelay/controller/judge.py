"""Keeps the job's protection report, tells when it changes, and ends a `torchrelay check` when there is nothing more to learn."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from torchrelay.controller.config import ControllerConfig
from torchrelay.controller.decide.buddies import choose_every
from torchrelay.controller.decide.coverage import Known, coverage, is_compared, without_replica
from torchrelay.controller.decide.hang import threshold_s
from torchrelay.controller.job import Job
from torchrelay.controller.outbox import Outbox
from torchrelay.protocol.events import CoverageKnown, RanksHeld
from torchrelay.protocol.kept import COPIES_AS_NEEDED
from torchrelay.protocol.messages import Coverage
from torchrelay.protocol.names import PENDING, UNPROTECTED

NOTICING_S = 1.0
"""How late a hang that is due may be seen: agents look and tell that often."""


class Judge:
    """`end_job()` is called once a check is over."""

    def __init__(self, config: ControllerConfig, job: Job, outbox: Outbox, end_job: Callable[[], None]) -> None:
        self._config, self._job, self._outbox, self._end_job = config, job, outbox, end_job
        self._told: tuple[Any, ...] | None = None
        self._is_stale = True
        self._is_over = False
        self._copies_every = 0

    def news(self) -> None:
        """Something that the report is made of has changed."""
        self._is_stale = True

    def now(self) -> Coverage:
        return coverage(self.known())

    def is_compared(self) -> bool:
        """Whether it is known of every rank if another one holds the same."""
        return is_compared(self.known())

    def known(self) -> Known:
        job, policy, every = self._job, self._config.policy, self._config.buddy_every
        known = Known(
            job.world_size,
            job.protection,
            job.protection_reason,
            {w.rank: w.report for w in job.rank_workers if w.report is not None},
            {rank: tuple(checks) for rank, checks in job.checks.items()},
            job.clock.median_step_s,
            threshold_s(job.clock.median_step_s, policy) + NOTICING_S,
            len(job.nodes),
            frozenset(w.rank for w in job.rank_workers if w.copied_to),
            max(every, 0),
            frozenset(w.rank for w in job.rank_workers if w.copy_on),
            self._config.buddy_sync,
            dict(job.rehearsals.judged),
            job.rehearsals.open,
        )
        return replace(known, copy_every=self._as_needed(known)) if every == COPIES_AS_NEEDED else known

    def _as_needed(self, known: Known) -> int:
        """Steps between two copies, once it is known that somebody needs them; chosen once, since all ranks have to agree."""
        alone = is_compared(known) and any(without_replica(rank, known) for rank in range(known.world_size))
        if alone and not self._copies_every:
            size_bytes = max((r.device_state_bytes for r in known.reports.values()), default=0)
            self._copies_every = choose_every(size_bytes, known.step_s)
        return self._copies_every if alone else 0

    def settle(self) -> bool:
        """Tells the report if it says something new; whether anything had changed. Cheap as long as nothing has."""
        if not self._is_stale:
            return False
        self._is_stale = False
        now = self.now()
        says = (now.level, now.reason, now.gaps, now.file, now.line, now.rehearsed)
        if now.level != PENDING and says != self._told:
            self._told = says
            self._outbox.emit(CoverageKnown(dataclasses.asdict(now)))
        if self._config.check_steps and not self._is_over:
            self._end_check(now)
        return True

    def job_over(self) -> None:
        """To be called before the job's last event: a check whose script ended by itself has its report too."""
        if not self._config.check_steps or self._is_over:
            return
        self._is_over = True
        now = self.now()
        if now.level == PENDING:
            why = f"the job ended before its training was protected: {now.reason}"
            now = dataclasses.replace(now, level=UNPROTECTED, reason=why)
        self._outbox.emit(CoverageKnown(dataclasses.asdict(now)))

    def _end_check(self, now: Coverage) -> None:
        ranks = self._job.rank_workers
        held = all(w.held or w.finishing for w in ranks)
        if not held and not (now.level == UNPROTECTED and self._has_said_all()):
            return
        self._is_over = True
        # With the costs of all steps, which are no news by themselves.
        self._outbox.emit(CoverageKnown(dataclasses.asdict(now)))
        self._outbox.emit(RanksHeld(self._job.boundary))
        self._end_job()

    def _has_said_all(self) -> bool:
        """Whether waiting for more steps would tell nothing more: no rank is going to hold."""
        if self._job.protection == "off":
            return True
        return all(
            w.report is not None and not w.report.settled and w.report.boundary < 0 for w in self._job.rank_workers
        )
