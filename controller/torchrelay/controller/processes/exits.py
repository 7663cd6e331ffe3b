"""What a process's end, or its script's failure, means for the job."""

from __future__ import annotations

import dataclasses
import signal
from collections.abc import Callable
from dataclasses import dataclass

from torchrelay.controller.config import ControllerConfig
from torchrelay.controller.decide.detection.classify_exit import DONE, IGNORE, REPLACE, STOP, Exit, classify_exit
from torchrelay.controller.decide.replacement.joins import JoinFailure
from torchrelay.controller.execution.driver import Driver
from torchrelay.controller.health.health_controller import HealthController
from torchrelay.controller.migration import events as m
from torchrelay.controller.outbox import Outbox
from torchrelay.controller.picture.job import Job
from torchrelay.controller.picture.worker import Worker
from torchrelay.controller.restart.fallen import Fallen
from torchrelay.protocol.events import WorkerEnded
from torchrelay.protocol.messages import (
    CommunicationFailed,
    FetchJournal,
    MayFinish,
    ScriptFailed,
    Unfit,
    WorkerExited,
)
from torchrelay.protocol.names import NO_RANK
from torchrelay.protocol.words.causes import MigrationCause
from torchrelay.protocol.words.order_words import failed
from torchrelay.protocol.words.process_ends import how_ended
from torchrelay.protocol.words.signals import PROGRAM_SIGNALS

FIRST_STEP_GRACE_S = 2.0
"""Progress is polled: a rank may be in its first step without the controller knowing it yet."""


@dataclass(frozen=True)
class _Pending:
    worker: Worker
    exit_code: int
    reason: str
    until_s: float


class Exits:
    """`end_job(exit_code, reason, rank, by_script)` ends the job; the first cause wins.

    `give_up` too, unless it can begin again elsewhere.
    """

    def __init__(
        self,
        config: ControllerConfig,
        job: Job,
        outbox: Outbox,
        driver: Driver,
        health: HealthController,
        end_job: Callable[[int, str, int, bool], None],
        give_up: Callable[[Fallen], None],
    ) -> None:
        self._health = health
        self._give_up = give_up
        self._config = config
        self._job = job
        self._outbox = outbox
        self._driver = driver
        self._end_job = end_job
        self._failing: _Pending | None = None
        self._undecided: list[_Pending] = []

    @property
    def is_failing(self) -> bool:
        """A script has failed, and the job ends as soon as it has: no loss matters any more."""
        return self._failing is not None

    def why_ending(self) -> str:
        """Why nothing is begun any more that somebody wishes, such as a spare; empty while all ranks train."""
        if self.is_failing or any(w.finishing or not w.alive for w in self._job.rank_workers):
            return "ranks are at their end"
        return ""

    @property
    def is_waiting(self) -> bool:
        """Whether something is decided by the clock soon."""
        return self._failing is not None or bool(self._undecided)

    def script_failed(self, worker: Worker, report: ScriptFailed, now_s: float) -> None:
        worker.failed = report
        reason = failed(worker.rank, report.kind, report.message, ours=report.ours)
        if self._driver.has_given_up(worker.worker):
            return
        joining = worker.rank != NO_RANK and not self._job.is_holder(worker)
        if joining or self._driver.holds_training:
            # Its peers are gone or stand still: what it met is a consequence, or comes again after the migration.
            self._driver.lose(worker, f"{reason} (during a migration)", now_s)
        elif (
            worker.rank != NO_RANK
            and report.exit_code != 0
            and self._failing is None
            and self._is_blamed(worker, now_s)
        ):
            self._replace(worker, f"{reason}; {self._health.blamed(worker, now_s)}", now_s, now_s)
        elif worker.rank != NO_RANK and report.exit_code != 0 and self._failing is None:
            self._failing = _Pending(worker, report.exit_code, reason, now_s + self._config.policy.failure_grace_s)
            if self._job.local_world_size > 1:
                self._outbox.to_worker(worker.worker, MayFinish())  # it waits for this verdict

    def unfit(self, worker: Worker, report: Unfit, now_s: float) -> None:
        """Its end follows, and is a loss like any other; this says why."""
        worker.unfit = report

    def communication_failed(self, worker: Worker, report: CommunicationFailed, now_s: float) -> None:
        """Nobody is lost, so the rank that says it is replaced: it would fail where all go on with what they have.

        The other end of a connection may say the same a moment later; a migration is under way then.
        """
        who = f"rank {worker.rank} ({worker.worker})"
        because = self._job.unprotected_because(worker.worker)
        if not self._job.is_holder(worker) or self._driver.migration is not None or self._failing is not None:
            because = because or "the job is at something else"
        if because:
            self._outbox.log("info", f"a communication of {who} has failed; it is not replaced for it: {because}")
            return
        reason = f"{who} cannot reach the others, of which none is lost: {report.reason}"
        self._replace(worker, reason, now_s - max(report.age_s, 0.0), now_s)

    def exited(self, worker: Worker, exit_: WorkerExited, now_s: float) -> None:
        if exit_.fenced and not worker.told_to_end and self._job.is_holder(worker):
            # The controller before this one has ended it, and nobody goes on with that migration: the rank is lost like any other.
            exit_ = dataclasses.replace(exit_, fenced=False)
        first_word = worker.exited is None
        worker.exited = worker.exited or exit_
        if first_word:
            self._outbox.emit(WorkerEnded(worker.worker, worker.rank, exit_.exit_code, exit_.signal, exit_.fenced))
        if exit_.fenced:
            self._driver.feed(m.WorkerGone(worker.worker), now_s)
        if worker.rank == NO_RANK:
            self._driver.feed(m.SpareWarm(), now_s)  # a rank may wait for its place
        if not first_word or exit_.fenced or self._driver.has_given_up(worker.worker):
            return
        if worker.rank == NO_RANK:
            self._outbox.log("warning", f"spare {worker.worker} is lost: {_how(worker, exit_)}; {self._spares_left()}")
        elif not self._job.is_holder(worker):
            if self._driver.migration is not None:
                how = _how(worker, exit_)
                is_own = _is_of_the_program(worker, exit_)
                self._job.join_failures.append(
                    JoinFailure(worker.rank, worker.worker, worker.node, f"it {how}", by_chance=not is_own)
                )
                self._driver.lose(worker, f"{worker.worker}, which was to take over rank {worker.rank}, {how}", now_s)
        elif self._failing is not None:
            if worker is self._failing.worker:
                self._end_failing()
        else:
            self._rank_exited(worker, exit_, now_s)

    def lost_with_node(self, worker: Worker, reason: str, since_s: float, now_s: float) -> None:
        """Nobody will say how the worker ended: its node was given up as a whole, of which nothing was heard `since_s`."""
        worker.exited = WorkerExited(worker.worker, 128 + signal.SIGKILL, int(signal.SIGKILL), True)
        self._outbox.emit(WorkerEnded(worker.worker, worker.rank, worker.exited.exit_code, worker.exited.signal, True))
        if self._driver.has_given_up(worker.worker):
            self._driver.feed(m.WorkerGone(worker.worker), now_s)
        elif worker.rank == NO_RANK or self._failing is not None:
            return
        elif self._job.is_holder(worker):
            self._replace(worker, reason, since_s, now_s, MigrationCause.NODE)
        elif self._driver.migration is not None:
            self._driver.lose(worker, reason, now_s)

    def tick(self, now_s: float) -> None:
        if self._failing is not None and now_s >= self._failing.until_s:
            self._end_failing()
        for p in list(self._undecided):
            because = self._job.unprotected_because(p.worker.worker)
            if not because:
                self._undecided.remove(p)
                self._replace(p.worker, p.reason, now_s, now_s)
            elif now_s >= p.until_s:
                self._undecided.remove(p)
                reason = f"{p.reason} and cannot be replaced: {because}"
                self._give_up(Fallen(p.exit_code, reason, p.worker.rank, refused=because))

    def _rank_exited(self, worker: Worker, exit_: WorkerExited, now_s: float) -> None:
        because = self._job.unprotected_because(worker.worker)
        verdict = classify_exit(
            Exit(
                worker.worker,
                worker.rank,
                exit_.exit_code,
                exit_.signal,
                exit_.fenced,
                finishing=worker.finishing,
                script_failed=worker.failed is not None and worker.failed.exit_code != 0,
                in_migration=self._driver.holds_training,
                unprotected_because=because,
                unfit=worker.unfit.reason if worker.unfit is not None else "",
            )
        )
        if verdict.action == IGNORE:
            return
        if self._config.observe and verdict.action == STOP and exit_.signal:
            self._health.loss_observed(worker, f"rank {worker.rank} ({worker.worker}) {_how(worker, exit_)}")
        if verdict.action == DONE:
            worker.finishing = True
            if exit_.signal:
                self._outbox.log("warning", verdict.reason)
            self._driver.feed(m.RankFinished(worker.rank), now_s)
        elif verdict.action == REPLACE:
            blamed = self._health.blamed(worker, now_s)
            if not blamed and _is_of_the_program(worker, exit_):
                how = worker.unfit.reason if worker.unfit is not None else signal.Signals(exit_.signal).name
                if self._health.ended(worker, how, exit_.exit_code, now_s):
                    return
            self._replace(worker, f"{verdict.reason}; {blamed}" if blamed else verdict.reason, now_s, now_s)
        elif exit_.signal and self._job.protection == "on" and not worker.finishing:
            how = f"rank {worker.rank} ({worker.worker}) {_how(worker, exit_)}"
            self._undecided.append(_Pending(worker, verdict.exit_code, how, now_s + FIRST_STEP_GRACE_S))
            self._outbox.to_agent_of(worker.worker, FetchJournal(worker.worker))
        elif exit_.signal and self._job.protection != "off":
            self._give_up(Fallen(verdict.exit_code, verdict.reason, worker.rank, refused=because))
        else:
            self._end_job(verdict.exit_code, verdict.reason, worker.rank, not exit_.signal)

    def _is_blamed(self, worker: Worker, now_s: float) -> bool:
        """Whether the script failed because of its device, and the rank can be replaced."""
        return bool(self._health.blamed(worker, now_s)) and not self._job.unprotected_because(worker.worker)

    def _replace(
        self,
        worker: Worker,
        reason: str,
        since_s: float,
        now_s: float,
        cause: MigrationCause = MigrationCause.PROCESS,
    ) -> None:
        self._driver.lose(worker, reason, now_s, since_s=worker.lost_since_s(since_s), cause=cause)

    def _end_failing(self) -> None:
        failing = self._failing
        assert failing is not None
        if failing.worker.failed is not None and failing.worker.failed.ours:
            # No rank may go on from what this one has given others; another run of the script need not meet the same.
            self._give_up(Fallen(failing.exit_code, failing.reason, failing.worker.rank, refused=failing.reason))
        else:
            self._end_job(failing.exit_code, failing.reason, failing.worker.rank, True)

    def _spares_left(self) -> str:
        left = len(self._job.spares)
        return f"{left} left" if left else "none is left"


def _is_of_the_program(worker: Worker, exit_: WorkerExited) -> bool:
    """Whether what the program does may have ended it: then it may come again at the same step."""
    return worker.unfit.by_script if worker.unfit is not None else exit_.signal in PROGRAM_SIGNALS


def _how(worker: Worker, exit_: WorkerExited) -> str:
    if worker.unfit is not None:
        return f"ended itself: {worker.unfit.reason}"
    return how_ended(exit_.signal, exit_.exit_code)
