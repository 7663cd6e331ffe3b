"""Looks for ranks that hang, with decide.hang, and tells the migration."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import replace

from torchrelay.controller.config import Policy
from torchrelay.controller.decide.detection.hang import Culprit, Vital, find_culprit, threshold_s
from torchrelay.controller.decide.detection.overdue import overdue
from torchrelay.controller.decide.detection.unlike_updates import unlike_updates
from torchrelay.controller.execution.driver import Driver
from torchrelay.controller.health.health_controller import HealthController
from torchrelay.controller.migration import events as m
from torchrelay.controller.migration.state import State
from torchrelay.controller.outbox import Outbox
from torchrelay.controller.picture.job import Job
from torchrelay.controller.picture.worker import Worker
from torchrelay.controller.processes.stack_questions import Witness
from torchrelay.controller.restart.fallen import Fallen
from torchrelay.protocol.events import Suspected
from torchrelay.protocol.machine.process_states import CANNOT_GO_ON, STOPPED
from torchrelay.protocol.messages import Explained, LiftGates
from torchrelay.protocol.words.causes import MigrationCause
from torchrelay.protocol.words.phases import PLANNED, UNFORCED, UNPLANNED, Phase
from torchrelay.protocol.words.positions import RankPhase

UNEASY_S = 2.0
"""More than STILL_S, since a rank may stand still for a moment."""


class HangWatch:
    """`give_up(fallen)` is called when the job can wait no longer for a rank that cannot be replaced."""

    def __init__(
        self,
        policy: Policy,
        job: Job,
        outbox: Outbox,
        driver: Driver,
        health: HealthController,
        give_up: Callable[[Fallen], None],
    ) -> None:
        self._policy = policy
        self._job = job
        self._outbox = outbox
        self._driver = driver
        self._health = health
        self._give_up = give_up
        self._witness = Witness(policy, job, outbox)
        self._named: tuple[int, float] | None = None
        self._suspect: Worker | None = None
        self._blamed: dict[int, int] = {}
        """By rank, the boundary at which it was last taken for one that hangs."""

    def is_uneasy(self, now_s: float) -> bool:
        """Whether a rank is stopped or stands still, so that a verdict may be due any moment.

        Who does not train yet may stand still for minutes, and nobody is blamed for it.
        """
        return self._is_anybody_silent(UNEASY_S, now_s, but_in=(RankPhase.SET_UP,))

    def _is_anybody_silent(self, at_least_s: float, now_s: float, but_in: Collection[str] = ()) -> bool:
        """Without one there is nobody to ask and nobody to blame, which need not be found out at every tick."""
        return any(
            w.stopped_since_s is not None or (w.progress.phase not in but_in and w.silent_s(now_s) >= at_least_s)
            for w in self._job.rank_workers
            if w.alive and w.progress is not None
        )

    def explained(self, worker: Worker, report: Explained, now_s: float) -> None:
        self._witness.answered(worker, report)

    def tick(self, now_s: float) -> None:
        phase = self._driver.phase
        if self._suspect is not None and phase is not Phase.SUSPECTED:
            suspect = self._suspect
            self._suspect = None
            migration = self._driver.migration
            if migration is not None and suspect.rank in migration.state.lost:
                self._blame(suspect)
                if self._health.ended(suspect, "hang", 0, now_s):
                    return
        if phase in (Phase.HEALTHY, Phase.SUSPECTED, Phase.COMMITTED) or self._trains_meanwhile():
            self._watch_training(phase, now_s)
        else:
            self._watch_standing(now_s)

    def _trains_meanwhile(self) -> bool:
        """Whether a migration is under way that nobody stands for yet, though all know where they are to stand."""
        migration = self._driver.migration
        if migration is None:
            return False
        state = migration.state
        if state.phase is Phase.PREPARING:
            return state.kind == PLANNED
        return (
            state.phase is Phase.QUIESCING and state.kind in UNFORCED and state.quiesce_agreed and not state.standings
        )

    def _watch_training(self, phase: Phase, now_s: float) -> None:
        step_s = self._job.clock.median_step_s
        limit_s = threshold_s(step_s, self._policy)
        if self._driver.migration is None and not self._is_anybody_silent(self._witness.lead_s(limit_s), now_s):
            return
        self._witness.ask(limit_s, now_s)
        workers = [w for w in self._job.rank_workers if w.alive and w.progress is not None]
        vitals = [self._vital(w, now_s) for w in workers]
        if self._lifts_gates(vitals, step_s):
            return
        culprit = find_culprit(vitals, step_s, self._policy)
        if culprit is not None and self._witness.is_awaited(self._job.holder(culprit.rank), now_s):
            return
        if because := self._job.unprotected_because():
            self._wait_for(culprit, because, now_s)
            return
        migration = self._driver.migration
        if culprit is not None and culprit.cut_off:
            self._job.nodes[self._job.holder(culprit.rank).node].links_down = True
        if migration is None:
            if culprit is not None:
                self._outbox.emit(Suspected(culprit.rank, culprit.reason, culprit.evidence, culprit.stack))
                worker = self._job.holder(culprit.rank)
                if worker.stopped_since_s is None:
                    self._suspect = worker  # a process is stopped by somebody else
                raised = m.SuspicionRaised(culprit.rank, culprit.reason, _since_s(worker, culprit, now_s))
                self._driver.begin(raised, now_s)
        elif phase is Phase.SUSPECTED:
            if culprit is None or culprit.rank != migration.state.rank:
                self._job.nodes[self._job.holder(migration.state.rank).node].links_down = False
                self._driver.feed(m.SuspicionCleared(migration.state.rank), now_s)
        elif culprit is not None:
            worker = self._job.holder(culprit.rank)
            since_s = _since_s(worker, culprit, now_s)
            self._blame(worker)
            self._driver.lose(worker, culprit.reason, now_s, since_s=since_s, cause=MigrationCause.HANG)

    def _blame(self, worker: Worker) -> None:
        assert worker.progress is not None
        self._blamed[worker.rank] = worker.progress.boundary

    def _lifts_gates(self, vitals: Sequence[Vital], step_s: float) -> bool:
        """Let ranks go on without protection that wait for each other through our doing. Returns whether they do."""
        if self._driver.phase not in (Phase.HEALTHY, Phase.COMMITTED) or len(vitals) < self._job.world_size:
            return False
        is_protected = not self._job.unprotected_because()
        reason = unlike_updates(vitals, step_s, self._policy, self._blamed, is_protected=is_protected)
        if reason:
            for worker in self._job.rank_workers:
                self._outbox.to_worker(worker.worker, LiftGates(reason))
        return bool(reason)

    def _wait_for(self, culprit: Culprit | None, because: str, now_s: float) -> None:
        """Name a rank that cannot be replaced, once for each hang, and end the job when the others have waited long enough."""
        if culprit is None or self._job.protection != "on":
            return
        timeouts_s = [w.report.group_timeout_s for w in self._job.rank_workers if w.report is not None]
        asked_s = self._policy.hang_timeout_s
        option = self._policy.hang_timeout_option
        if reason := overdue(culprit, because, asked_s, option, timeouts_s):
            self._give_up(Fallen(1, reason, culprit.rank, refused=because))
            return
        hang = culprit.rank, self._job.holder(culprit.rank).moved_s
        if self._named is None or self._named[0] != hang[0] or abs(self._named[1] - hang[1]) > 1.0:
            self._named = hang
            reason = f"{culprit.reason}; it is not replaced: {because}"
            self._outbox.emit(Suspected(culprit.rank, reason, culprit.evidence, culprit.stack))

    def _watch_standing(self, now_s: float) -> None:
        """Between the phases of a migration nobody computes for long, and a stopped process needs no peers' witness."""
        migration = self._driver.migration
        if migration is None:
            return
        for rank, worker_id in list(migration.state.members.items()):
            worker = self._job.workers[worker_id]
            stopped_s = 0.0 if worker.stopped_since_s is None else now_s - worker.stopped_since_s
            if worker.alive and stopped_s >= self._policy.stopped_s:
                state = worker.progress.process_state if worker.progress is not None else STOPPED
                how = CANNOT_GO_ON.get(state, CANNOT_GO_ON[STOPPED])
                reason = f"{worker_id} (rank {rank}) {how} for {stopped_s:.1f} s in a migration"
                self._driver.lose(worker, reason, now_s, since_s=now_s - stopped_s, cause=MigrationCause.HANG)
                return
        self._watch_survivors(migration.state, now_s)

    def _watch_survivors(self, state: State, now_s: float) -> None:
        """Replace a rank that hangs while others stand already: it hung before another rank was lost, or hangs since then.

        It is judged as in training, with those that stand as the ones that wait.
        """
        if state.kind != UNPLANNED or not state.standings:
            return
        survivors = [w for rank in state.survivors if (w := self._job.holder(rank)).alive and w.progress is not None]
        late = [w for w in survivors if w.rank not in state.standings]
        step_s = self._job.clock.median_step_s
        limit_s = threshold_s(step_s, self._policy)
        if not any(w.silent_s(now_s) >= self._witness.lead_s(limit_s) for w in late):
            return
        self._witness.ask_those(late, limit_s, now_s)
        vitals = [v for w in late if not (v := self._vital(w, now_s)).waits_for_peers or v.runs_in_circles]
        if not vitals:
            return  # what they wait in is broken for them, which takes its time
        stand = (self._vital(w, now_s) for w in survivors if w.rank in state.standings)
        vitals += [replace(v, phase=RankPhase.BODY, waiting=True, in_own_code=False, motion="") for v in stand]
        culprit = find_culprit(vitals, step_s, self._policy)
        if culprit is None or culprit.rank in state.standings:
            return
        worker = self._job.holder(culprit.rank)
        if not self._witness.is_awaited(worker, now_s):
            since_s = _since_s(worker, culprit, now_s)
            self._driver.lose(worker, culprit.reason, now_s, since_s=since_s, cause=MigrationCause.HANG)

    def _vital(self, worker: Worker, now_s: float) -> Vital:
        p = worker.progress
        seen = self._witness.answer(worker)
        is_current = seen is not None and self._witness.is_of_this_wait(worker)
        assert p is not None
        return Vital(
            worker.rank,
            p.boundary,
            p.gates_passed,
            p.phase,
            p.waiting,
            p.process_state,
            silent_s=worker.silent_s(now_s),
            idle_s=now_s - worker.busy_s,
            news_age_s=now_s - worker.news_s,
            stopped_s=0.0 if worker.stopped_since_s is None else now_s - worker.stopped_since_s,
            stack=seen.stack if seen is not None else (),
            motion=seen.motion if seen is not None else "",
            asleep=is_current and seen is not None and seen.asleep,
            count=p.count,
            links=seen.links if seen is not None else None,
            in_own_code=seen is not None and seen.in_own_code,
            keeps_lock=seen is not None and seen.keeps_lock,
            may_be_woken=seen is not None and seen.may_be_woken,
            locked=seen is not None and seen.locked,
        )


def _since_s(worker: Worker, culprit: Culprit, now_s: float) -> float:
    return worker.lost_since_s(now_s - culprit.silent_s)
