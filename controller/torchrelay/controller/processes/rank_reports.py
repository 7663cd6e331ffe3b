"""What ranks and spares say of themselves."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

from torchrelay.controller.coverage.judge import ProtectionJudge
from torchrelay.controller.decide.replacement.joins import JoinFailure
from torchrelay.controller.execution.divergence import Divergence
from torchrelay.controller.execution.driver import Driver
from torchrelay.controller.execution.planned_moves import PlannedMoves
from torchrelay.controller.health.health_controller import HealthController
from torchrelay.controller.migration import events as m
from torchrelay.controller.outbox import Outbox
from torchrelay.controller.picture.job import Job
from torchrelay.controller.picture.worker import Worker
from torchrelay.protocol import messages as msg
from torchrelay.protocol.events import FaultFired, ReportMade
from torchrelay.protocol.names import NO_RANK, TOLD_TO_END
from torchrelay.protocol.words.causes import MigrationCause

Handler = Callable[[Worker, Any, float], None]
FOR_THE_MIGRATION = (
    msg.Standing,
    msg.QuiesceAnswer,
    msg.Prepared,
    msg.Serving,
    msg.Transferred,
    msg.Rebuilt,
    msg.Verified,
    msg.Resumed,
    msg.FirstStep,
    msg.OrderFailed,
    msg.CheckpointSaved,
)


class RankReports:
    def __init__(
        self,
        job: Job,
        outbox: Outbox,
        driver: Driver,
        judge: ProtectionJudge,
        health: HealthController,
        planned_moves: PlannedMoves,
        divergence: Divergence,
    ) -> None:
        self._job = job
        self._outbox = outbox
        self._driver = driver
        self._judge = judge
        self._health = health
        self._planned_moves = planned_moves
        self._divergence = divergence
        self._said: dict[int, ReportMade] = {}
        """By rank, the report that was told last."""

    def handlers(self) -> Mapping[type, Handler]:
        """By the type of the message."""
        return {
            msg.Hello: self._hello,
            msg.Warm: self._warm,
            msg.Armed: self._armed,
            msg.Disabled: self._disabled,
            msg.Report: self._report,
            msg.ReplicaCheck: self._replica_check,
            msg.Finishing: self._finishing,
            msg.FaultInjected: self._fault_injected,
            msg.MigrationWanted: self._migration_wanted,
            msg.Held: self._held,
            msg.BytesDone: self._bytes_done,
            **dict.fromkeys(FOR_THE_MIGRATION, self._for_the_migration),
        }

    def _hello(self, worker: Worker, report: msg.Hello, now_s: float) -> None:
        worker.pid = report.pid

    def _warm(self, worker: Worker, report: msg.Warm, now_s: float) -> None:
        worker.warm = True
        self._driver.feed(m.SpareWarm(), now_s)

    def _armed(self, worker: Worker, report: msg.Armed, now_s: float) -> None:
        worker.armed = report

    def _disabled(self, worker: Worker, report: msg.Disabled, now_s: float) -> None:
        worker.disabled = report.reason
        if worker.rank == NO_RANK:
            self._outbox.log("warning", f"spare {worker.worker} cannot be used: {report.reason}")
        elif not self._job.is_holder(worker):
            # Every process has the same torch and the same script.
            self._job.join_failures.append(
                JoinFailure(worker.rank, worker.worker, worker.node, report.reason, lasting=True)
            )
            reason = f"{worker.worker} cannot take over rank {worker.rank}: {report.reason}"
            self._driver.lose(worker, reason, now_s)

    def _report(self, worker: Worker, r: msg.Report, now_s: float) -> None:
        worker.report = r
        worker.seen_boundary = max(worker.seen_boundary, 0)  # it is made in the loop
        self._judge.news()
        said = ReportMade(
            worker.rank,
            r.file,
            r.line,
            r.device_state_bytes,
            r.journal_bytes,
            r.tensors,
            r.unprotected,
            r.notes,
            tuple(dataclasses.asdict(gap) for gap in r.gaps),
        )
        if self._said.get(worker.rank) != said:  # the rest of a report are times, which always change
            self._said[worker.rank] = said
            self._outbox.emit(said)

    def _replica_check(self, worker: Worker, report: msg.ReplicaCheck, now_s: float) -> None:
        worker.seen_boundary = max(worker.seen_boundary, report.boundary)
        self._divergence.told(worker, report)
        if self._job.is_holder(worker):
            self._job.add_check(worker.rank, report)
            self._health.checked(now_s)
            self._judge.news()

    def _held(self, worker: Worker, report: msg.Held, now_s: float) -> None:
        worker.held = True
        worker.seen_boundary = max(worker.seen_boundary, report.boundary)
        self._judge.news()

    def _finishing(self, worker: Worker, report: msg.Finishing, now_s: float) -> None:
        worker.finishing = True
        self._judge.news()
        worker.seen_boundary = max(worker.seen_boundary, report.boundary)
        self._driver.feed(m.RankFinished(worker.rank), now_s)

    def _fault_injected(self, worker: Worker, report: msg.FaultInjected, now_s: float) -> None:
        worker.fault_s = now_s
        worker.seen_boundary = max(worker.seen_boundary, report.boundary)
        self._outbox.emit(FaultFired(report.fault, worker.rank, report.boundary + 1))

    def _migration_wanted(self, worker: Worker, report: msg.MigrationWanted, now_s: float) -> None:
        if report.reason == TOLD_TO_END and self._planned_moves.is_wanted(worker.rank):
            return  # for another reason: whoever deletes a pod is seen, too
        if self._job.is_holder(worker):
            cause = MigrationCause.TOLD_TO_END if report.reason == TOLD_TO_END else MigrationCause.ASKED
            self._planned_moves.want(worker.rank, report.reason, now_s, cause=cause)
        else:
            self._planned_moves.refuse(
                worker.rank, report.reason, f"{worker.worker} does not hold rank {worker.rank} any more"
            )

    def _bytes_done(self, worker: Worker, report: msg.BytesDone, now_s: float) -> None:
        self._driver.bytes_told.take(worker.worker, report, now_s)

    def _for_the_migration(self, worker: Worker, report: Any, now_s: float) -> None:
        if self._driver.migration is None:
            if not isinstance(report, (msg.Resumed, msg.FirstStep)):
                self._outbox.log_once(
                    "info", f"{type(report).__name__} of {worker.worker} is ignored: no migration is under way"
                )
            return
        if isinstance(report, (msg.Transferred, msg.CheckpointSaved)):
            self._driver.bytes_told.done(worker.worker)
        if isinstance(report, msg.CheckpointSaved):
            self._driver.saved(worker.rank, report.size_bytes)
        if isinstance(report, msg.OrderFailed):
            self._driver.rollback.failed(worker, report)
            if not self._job.is_holder(worker):
                failure = JoinFailure(worker.rank, worker.worker, worker.node, report.reason, report.lasting)
                self._job.join_failures.append(failure)
        self._driver.feed(m.Said(worker.rank, worker.worker, report), now_s)
