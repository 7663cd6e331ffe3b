"""Takes in what agents say: of themselves, of the processes on their machine, and in the name of these processes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torchrelay.controller.parts import Parts
from torchrelay.controller.picture.worker import Worker
from torchrelay.controller.processes.rank_reports import Handler, RankReports
from torchrelay.protocol import messages as msg
from torchrelay.protocol.errors import FrameError
from torchrelay.protocol.names import NO_RANK
from torchrelay.protocol.transport.wire import decode


class AgentReports:
    """The reports to one job. `settle_soon(now_s)` is called after each report."""

    def __init__(self, parts: Parts, settle_soon: Callable[[float], None]) -> None:
        self._parts = parts
        self._job = parts.job
        self._outbox = parts.outbox
        self._driver = parts.driver
        self._settle_soon = settle_soon
        self.found: msg.CheckpointsFound | None = None
        """The checkpoints that an agent has found on disk since the job has fallen."""
        self.came_further = False
        """Whether ranks have come further since the last look at which rank is slow."""
        self._of_nodes: dict[type, Callable[[str, Any, float], None]] = {
            msg.HealthSignals: self._health_signals,
            msg.HealthSources: lambda node, report, now_s: parts.health.sources(node, report),
            msg.WorkerStarted: self._worker_started,
            msg.DeviceChecked: lambda node, report, now_s: parts.health.device_checked(report),
            msg.JournalContent: self._journal_content,
            msg.KeptCopies: self._driver.kept_arrived,
            msg.CheckpointFile: self._checkpoint_file,
            msg.CheckpointsFound: lambda node, report, now_s: None,
            msg.RoomLeft: self._room_left,
            msg.LateWorker: self._late_worker,
            msg.RehearserStarted: self._rehearser_started,
        }
        self._of_ranks: dict[type, Handler] = {
            msg.ScriptFailed: parts.exits.script_failed,
            msg.Unfit: parts.exits.unfit,
            msg.CommunicationFailed: parts.exits.communication_failed,
            msg.Explained: parts.hang_watch.explained,
            msg.NumberAlarm: parts.numbers.alarm,
            msg.CopyReady: parts.buddies.ready,
            msg.CopyTaken: parts.buddies.taken,
            msg.FilesKept: self._files_kept,
            msg.AsideSet: self._aside_set,
            msg.JournalsCopied: parts.nodes.copied,
            msg.JournalCopyLost: parts.nodes.copy_lost,
            msg.Rehearsed: parts.rehearsals.result,
            msg.Pong: parts.pool.answered,
            **RankReports(
                parts.job,
                parts.outbox,
                parts.driver,
                parts.judge,
                parts.health,
                parts.planned_moves,
                parts.divergence,
            ).handlers(),
        }

    def progressed(self, node: str, message: msg.Progress, now_s: float) -> bool:
        """Take in how far ranks are. Return whether anything may follow.

        Thousands come a second where all is well: that ranks have come further is looked at with the clock.
        """
        if self._parts.ending.fallen is not None:
            return False
        is_news = False
        for progress in message.workers:
            if (worker := self._worker(node, progress.worker)) is not None:
                is_news = worker.take_progress(progress, now_s) or is_news
        self.came_further = True
        if not is_news and self._driver.migration is None:
            return False
        self._settle_soon(now_s)
        return True

    def take(self, node: str, message: msg.FromAgent, now_s: float) -> None:
        """Take in all other messages of the agent of `node`, but for `AgentHello`."""
        if isinstance(message, msg.CheckpointsFound):
            self.found = message
        if self._parts.ending.fallen is not None:
            return
        if (handler := self._of_nodes.get(type(message))) is not None:
            handler(node, message, now_s)
        else:
            assert isinstance(message, (msg.FromWorker, msg.WorkerExited))
            self._of_worker(node, message, now_s)
        self._settle_soon(now_s)

    def _of_worker(self, node: str, message: msg.FromWorker | msg.WorkerExited, now_s: float) -> None:
        parts = self._parts
        worker = self._worker(node, message.worker)
        if worker is None:
            self._outbox.log_once(
                "warning", f"{node} sent a message of {message.worker}, which is none of its workers: it is left out"
            )
        elif isinstance(message, msg.FromWorker):
            self._of_ranks[type(message.report)](worker, message.report, now_s)
        elif worker.rehearses:
            parts.rehearsals.process_ended(message, now_s)
        elif not parts.entrance.keeps(worker, message, now_s):
            parts.exits.exited(worker, message, now_s)
            if worker.started_for != NO_RANK and worker.rank == NO_RANK:
                self._driver.late_one_ended(worker, now_s)

    def _health_signals(self, node: str, report: msg.HealthSignals, now_s: float) -> None:
        if not self._parts.exits.is_failing:
            self._parts.health.signals(node, report, now_s)

    def _worker_started(self, node: str, report: msg.WorkerStarted, now_s: float) -> None:
        self._parts.entrance.take_in(node, report.info, now_s)
        self._parts.start.consider(now_s)

    def _room_left(self, node: str, report: msg.RoomLeft, now_s: float) -> None:
        self._job.nodes[node].room = report
        self._parts.judge.news()

    def _late_worker(self, node: str, report: msg.LateWorker, now_s: float) -> None:
        if not self._is_another_nodes(node, report.worker):
            self._driver.started(node, report, now_s)
            self._parts.pool.started(node, report, now_s)

    def _rehearser_started(self, node: str, report: msg.RehearserStarted, now_s: float) -> None:
        if not self._is_another_nodes(node, report.worker):
            self._parts.rehearsals.started(node, report, now_s)

    def _is_another_nodes(self, node: str, worker: str) -> bool:
        known = self._job.workers.get(worker)
        if known is None or known.node == node:
            return False
        self._outbox.log_once("warning", f"{node} says that it has started {worker}, a process of another node")
        return True

    def _checkpoint_file(self, node: str, report: msg.CheckpointFile, now_s: float) -> None:
        if self._parts.gathering is not None:
            self._parts.gathering.file(node, report)

    def _journal_content(self, node: str, content: msg.JournalContent, now_s: float) -> None:
        worker = self._job.workers.get(content.worker)
        if worker is None or self._job.node_with_journal(worker.worker) != node:
            self._outbox.log_once("warning", f"{node} sent a journal of {content.worker}, which it was not asked for")
            return
        if self._parts.rehearsals.takes(content, now_s) and not self._driver.reads(worker.worker):
            return
        if worker.rank != NO_RANK:
            self._job.journal(worker.rank).add(content)
            worker.seen_boundary = max(worker.seen_boundary, *content.boundaries, -1)
            self._hear_checks(worker.rank, content)
        self._driver.journal_arrived(worker.worker, now_s)

    def _hear_checks(self, rank: int, content: msg.JournalContent) -> None:
        """Take in the checks that a rank has told a controller before this one; none where this one has heard the rank itself."""
        if rank in self._job.checks:
            return
        try:
            for _, frame in sorted(content.checks.items()):
                self._job.add_check(rank, decode(frame, {msg.ReplicaCheck.__name__: msg.ReplicaCheck}))
        except FrameError as e:
            self._outbox.log_once("warning", f"what {content.worker} has told of its tensors cannot be read: {e}")

    def _files_kept(self, worker: Worker, report: msg.FilesKept, now_s: float) -> None:
        self._driver.files_kept(worker.worker, now_s)

    def _aside_set(self, worker: Worker, report: msg.AsideSet, now_s: float) -> None:
        if self._parts.gathering is not None:
            self._parts.gathering.aside_set(worker.worker, report)

    def _worker(self, node: str, worker: str) -> Worker | None:
        known = self._job.workers.get(worker)
        return known if known is not None and known.node == node else None
