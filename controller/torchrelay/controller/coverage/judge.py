"""Keeps the job's protection report, tells its level and any other change in it, and ends a `torchrelay check` in time."""

from __future__ import annotations

import dataclasses
import math
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from torchrelay.controller.config import ControllerConfig
from torchrelay.controller.decide.detection.hang import threshold_s
from torchrelay.controller.decide.protection.buddies import choose_every
from torchrelay.controller.decide.protection.coverage import coverage
from torchrelay.controller.decide.protection.known import SMALL_JOB, Known, is_compared, needs_copies, without_replica
from torchrelay.controller.decide.protection.lost_together import lost_together
from torchrelay.controller.decide.protection.room import checkpoint_lacks, joiner_lacks
from torchrelay.controller.decide.replacement.elsewhere import places
from torchrelay.controller.outbox import Outbox
from torchrelay.controller.picture.job import Job
from torchrelay.controller.picture.worker import Worker
from torchrelay.controller.replacement.respawns import Respawns
from torchrelay.controller.spares.pool import SparePool
from torchrelay.protocol.events import CoverageKnown, Protection, RanksHeld
from torchrelay.protocol.journals.kept import COPIES_AS_NEEDED
from torchrelay.protocol.messages import Coverage
from torchrelay.protocol.words.level import Level

STEPS_TIMED = 4
"""How many steps are made before their time counts. The first ones take longer: it counts anew after twice as many."""
NOTICING_S = 1.0
"""How late a hang that is due may be seen: agents look and tell that often."""

LATELY_S = 10.0
LATELY_S_PER_RANK = 0.5e-3

REST_S_PER_RANK = 0.4e-3
"""Of ranks beyond SMALL_JOB: so much later a report that has changed is made again. Making it takes some 0.08 ms a rank; while a
large job begins, each of its ranks changes it several times."""


class ProtectionJudge:
    """The protection of one job. `end_job()` is called once a check is over, but not while `is_rehearsing()`."""

    def __init__(
        self,
        config: ControllerConfig,
        job: Job,
        outbox: Outbox,
        respawns: Respawns,
        pool: SparePool,
        is_rehearsing: Callable[[], bool],
        end_job: Callable[[], None],
    ) -> None:
        self._config = config
        self._job = job
        self._outbox = outbox
        self._end_job = end_job
        self._respawns = respawns
        self._pool = pool
        self._is_rehearsing = is_rehearsing
        self._told: tuple[Any, ...] | None = None
        self._level_told = (Level.PENDING.value, "", "")
        self._then: tuple[Any, ...] = ()
        self._lately: tuple[float, Coverage] | None = None
        self._promised: tuple[Coverage, int] | None = None
        self._is_stale = self._is_old = True
        self._is_over = self._held_told = False
        self._copies_every = 0
        self._chosen_at = 0
        self._settled_s = -math.inf

    def news(self) -> None:
        """Take note that something has changed of which the report is made."""
        self._is_stale = self._is_old = True

    def now(self) -> Coverage:
        return coverage(self.known())

    def lately(self, now_s: float) -> Coverage:
        """Return the report.

        It costs in proportion to the job's size, so times and costs that grow with each step may be some seconds old.
        """
        old_s = self._rest_s if self._is_old else LATELY_S + LATELY_S_PER_RANK * self._job.world_size
        if self._lately is None or now_s - self._lately[0] >= old_s:
            return self._kept(self.now(), now_s)
        return self._lately[1]

    def _kept(self, report: Coverage, now_s: float) -> Coverage:
        self._lately = now_s, report
        self._is_old = False
        return report

    @property
    def _rest_s(self) -> float:
        return max(0, self._job.world_size - SMALL_JOB) * REST_S_PER_RANK

    def promised(self) -> tuple[Coverage, int]:
        """Return the report from when the job was last at rest, and how many spares were ready then."""
        return self._promised or (self.now(), 0)

    def is_compared(self) -> bool:
        """Return whether it is known of every rank if another one holds the same tensors."""
        return is_compared(self.known())

    def known(self) -> Known:
        job = self._job
        policy = self._config.policy
        every = self._config.buddy_every
        ready, coming = self._spares()
        lost = lost_together(job.nodes, job.machines)
        known = Known(
            job.world_size,
            job.protection,
            job.protection_reason,
            {w.rank: w.report for w in job.rank_workers if w.report is not None},
            {rank: tuple(checks) for rank, checks in job.checks.items()},
            job.clock.median_step_s,
            threshold_s(job.clock.median_step_s, policy) + NOTICING_S,
            nodes=len(job.nodes),
            place=lost.kind,
            leads_itself=not self._config.adopted,
            copied=frozenset(w.rank for w in job.rank_workers if lost.apart(w.node, w.copied_to)),
            copy_every=max(every, 0),
            lost=frozenset(w.rank for w in job.rank_workers if job.is_gone(w)),
            kept_elsewhere=frozenset(w.rank for w in job.rank_workers if lost.apart(w.node, w.copy_on)),
            copy_sync=self._config.buddy_sync,
            rehearsed=dict(job.rehearsals.judged),
            rehearsal_open=job.rehearsals.open or job.rehearsals.barred,
            spares_ready=ready,
            spares_coming=coming,
            losses_barred=job.losses_barred or self._config.spares_barred,
            short_of_spares=self._short_of_spares(),
            respawns=self._respawns.is_on,
            respawns_spent=self._respawns.spent,
            refilling=self._pool.has_refilled,
            machine_of={w.rank: lost.of[w.node] for w in job.rank_workers} if len(job.nodes) > 1 else {},
        )
        joiner, checkpoint = self._lacks(known)
        known = replace(known, joiner_lacks=joiner, checkpoint_lacks=checkpoint)
        if every == COPIES_AS_NEEDED:
            return replace(known, as_needed=True, copy_every=self._as_needed(known))
        return known

    def _lacks(self, known: Known) -> tuple[str, str]:
        """Return what a process that takes over a rank has no room for, and what a just-in-time checkpoint has no room for."""
        rooms = {name: node.room for name, node in self._job.nodes.items() if node.room is not None and not node.lost}
        reports = known.reports.values()
        each = [r.device_state_bytes for r in reports]
        alone = bool(rooms) and bool(without_replica(known))
        journals = joiner_lacks(rooms, max((r.memory_bytes for r in reports), default=0))
        return journals, checkpoint_lacks(rooms, sum(each) if alone else max(each, default=0))

    def _as_needed(self, known: Known) -> int:
        """Return the steps between two copies; 0 until it is known that a rank needs copies, and how long a step takes."""
        needed = bool(needs_copies(known))
        boundary = self._job.boundary
        if needed and boundary >= max(STEPS_TIMED, 2 * self._chosen_at):
            size_bytes = max((r.device_state_bytes for r in known.reports.values()), default=0)
            self._copies_every = choose_every(size_bytes, known.step_s, known.nodes)
            self._chosen_at = boundary
        return self._copies_every if needed else 0

    def _spares(self) -> tuple[int, int]:
        """Return how many spares are ready, for the rank that has the fewest, and how many are to come.

        A check asks what would be if there was one spare.
        """
        if self._config.check_steps:
            return 1, 0
        job = self._job
        spares = self._job.spares
        ready = min(
            sum(self._is_ready(w) for w in job.spares_for(i, spares))
            for i in range(job.world_size if job.imports_differ else job.local_world_size)
        )
        starting = sum(not w.warm for w in spares)
        return ready, starting + job.most_to_come(spares)

    def _is_ready(self, spare: Worker) -> bool:
        return spare.warm and spare.stopped_since_s is None and not self._job.quarantined(spare)

    def _short_of_spares(self) -> str:
        """Return why spares cannot take over all ranks of one machine, if it is lost; empty if they can.

        In pods new spares are made when they are needed.
        """
        job = self._job
        if self._config.adopted:
            none = not job.spares_wanted and not any(w.warm for w in job.spares)
            return "there is no spare for ranks whose pod is lost" if none else ""
        if len(job.nodes) < 2:
            return ""
        ranks = Counter(w.node for w in job.rank_workers)
        ready = Counter(w.node for w in job.spares if self._is_ready(w))
        with_places = self._respawns.machines_with_places()
        for node, count in sorted(ranks.items()):
            alike = job.alike(node)
            elsewhere = sum(ready[other] for other in alike)
            if elsewhere < count:
                elsewhere += places([m for m in with_places if m.node in alike], count - elsewhere)
            if elsewhere < count:
                why = "; what the script imports is not the same on all" if job.imports_differ else ""
                return f"spares and free places elsewhere could take over {elsewhere} of {count} ranks of {node}{why}"
        return ""

    def settle(self, is_busy: bool, now_s: float) -> bool:
        """Tell the report if it says something new. Return whether anything had changed. Cheap as long as nothing has.

        In a large job it is told some time later, so that making it leaves the controller time for all else.

        `is_busy`: the job moves a rank, or ends; the protection of this moment says nothing of what comes after.
        """
        if is_busy:
            self._is_old = True
            if not self._config.check_steps:
                return False
        job = self._job
        if now_s - self._settled_s < self._rest_s:
            return False
        facts = (
            *self._spares(),
            self._respawns.is_on,
            self._respawns.spent,
            len(job.nodes),
            tuple(job.machines.values()),
            sum(bool(w.copied_to) for w in job.rank_workers),
        )
        if not self._is_stale and facts == self._then:
            return False
        self._is_stale = False
        self._settled_s = now_s
        self._then = facts
        now = self._kept(self.now(), now_s)
        self._promised = now, facts[0]
        self._tell_level(now)
        says = (now.level, now.reason, now.gaps, now.file, now.line, now.rehearsed)
        if Level(now.level).is_known and says != self._told:
            self._told = says
            self._outbox.emit(CoverageKnown(dataclasses.asdict(now)))
        if self._config.check_steps and not self._is_over:
            self._end_check(now)
        return True

    def _tell_level(self, now: Coverage) -> None:
        says = (now.level, now.reason, now.cause)
        if now.level != Level.PENDING and says != self._level_told:
            self._level_told = says
            self._outbox.emit(Protection(*says))

    def job_over(self) -> None:
        """Tell the report of a check whose script ended by itself. To be called before the job's last event."""
        if not self._config.check_steps or self._is_over:
            return
        self._is_over = True
        now = self.now()
        if not Level(now.level).is_known:
            why = f"the job ended before its training was protected: {now.reason}"
            now = dataclasses.replace(now, level=Level.UNPROTECTED.value, reason=why)
        self._outbox.emit(CoverageKnown(dataclasses.asdict(now)))

    def _end_check(self, now: Coverage) -> None:
        ranks = self._job.rank_workers
        held = all(w.held or w.finishing for w in ranks)
        if not held and not (now.level == Level.UNPROTECTED and self._has_said_all()):
            return
        if not self._held_told:
            self._held_told = True
            # It tells the costs of all steps, too, which are no news by themselves.
            self._outbox.emit(CoverageKnown(dataclasses.asdict(now)))
            self._outbox.emit(RanksHeld(self._job.boundary))
        if not self._is_rehearsing():
            self._is_over = True
            self._end_job()

    def _has_said_all(self) -> bool:
        """Return whether waiting for more steps would tell nothing more: no rank is going to hold."""
        if self._job.protection == "off":
            return True
        return all(
            w.report is not None and not w.report.settled and w.report.boundary < 0 for w in self._job.rank_workers
        )
