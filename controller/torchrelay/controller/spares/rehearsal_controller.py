"""Has ranks rehearsed: looks whether it is time, carries out what a rehearsal asks for, and keeps what has come of them."""

from __future__ import annotations

from collections.abc import Callable

from torchrelay.controller.config import ControllerConfig
from torchrelay.controller.decide.replacement.rehearse import Due, NotDue, Past, RehearsalSituation, rehearse
from torchrelay.controller.execution.driver import Driver
from torchrelay.controller.outbox import Outbox
from torchrelay.controller.picture.job import Job
from torchrelay.controller.picture.rehearsal_book import RehearsalBook
from torchrelay.controller.picture.worker import Worker
from torchrelay.controller.spares.rehearsals import (
    Began,
    Disturbed,
    End,
    Event,
    JournalCame,
    Judged,
    NoProcess,
    ProcessReady,
    ReadForRehearsal,
    Rehearsals,
    RehearsalTimePassed,
    ResultCame,
    StartProcess,
    StartRehearsal,
)
from torchrelay.controller.spares.rehearser import Rehearser
from torchrelay.protocol.events import RehearsalFinished, RehearsalStarted
from torchrelay.protocol.exhaustive import assert_never
from torchrelay.protocol.messages import (
    EndRehearsal,
    FetchJournal,
    JournalContent,
    Rehearse,
    Rehearsed,
    RehearserStarted,
    WorkerExited,
)
from torchrelay.protocol.names import (
    BARS,
    REHEARSAL_BROKEN_OFF,
    REHEARSAL_DIFFERS,
    REHEARSAL_FAILED,
    REHEARSAL_OPEN,
)


class RehearsalController:
    """The rehearsals of one job. `is_compared()`: whether all ranks have compared what they hold.

    `news()` is called when a rank was judged.
    `doubt(spare, rank, reason, now_s)`: a rehearsal has failed. It returns whether the spare is replaced, and another one is to be
    heard.
    """

    def __init__(
        self,
        config: ControllerConfig,
        job: Job,
        outbox: Outbox,
        driver: Driver,
        is_compared: Callable[[], bool],
        news: Callable[[], None],
        doubt: Callable[[str, int, str, float], bool],
    ) -> None:
        self._every_s = config.rehearse_every_s
        self._in_check = bool(config.check_steps)
        self._job = job
        self._outbox = outbox
        self._driver = driver
        self._is_compared = is_compared
        self._news = news
        self._doubt = doubt
        self._rehearsals = Rehearsals()
        self._own = Rehearser(job, outbox)
        self._may_start = self._in_check or (driver.spares.respawns.is_on and not config.adopted)
        """Whether a process is started where there is no spare: only where an agent would start one in a lost rank's place, too."""
        self._spare = ""
        self._trains_since_s: float | None = None

    @property
    def book(self) -> RehearsalBook:
        return self._job.rehearsals

    @property
    def is_under_way(self) -> bool:
        return self._rehearsals.rank is not None

    def result(self, worker: Worker, result: Rehearsed, now_s: float) -> None:
        self._feed(ResultCame(worker.worker, result), now_s)

    def started(self, node: str, message: RehearserStarted, now_s: float) -> None:
        """Take in the process that was asked for, or the reason that there is none."""
        if why := self._own.started(node, message):
            self._feed(NoProcess(why), now_s)
        elif not self.is_under_way:
            self._own.end()

    def process_ended(self, exited: WorkerExited, now_s: float) -> None:
        if why := self._own.ended(exited):
            self._feed(NoProcess(why), now_s)

    def takes(self, content: JournalContent, now_s: float) -> bool:
        """Take in a journal. Return whether it was asked for from here; it is no newer state of the job then."""
        if not self._rehearsals.awaits_journal_of(content.worker):
            return False
        self._feed(JournalCame(content), now_s)
        return True

    def settle(self, now_s: float) -> None:
        """Look after the rehearsal. To be called when anything may have changed, and with the clock."""
        if self._every_s <= 0:
            return
        if self.is_under_way:
            self._go_on(now_s)
        if not self.is_under_way:
            self._consider(now_s)

    def _go_on(self, now_s: float) -> None:
        if disturbed := self._busy() or self._lost_spare():
            self._feed(Disturbed(disturbed), now_s)
        elif not self._spare and self._own.is_ready:
            self._spare = self._own.worker
            self._feed(ProcessReady(self._spare), now_s)
        elif not self._spare and (why := self._own.unusable):
            self._feed(NoProcess(why), now_s)
        else:
            self._feed(RehearsalTimePassed(), now_s)

    def _consider(self, now_s: float) -> None:
        if self._trains_since_s is None and self._trains():
            self._trains_since_s = now_s
        if self._trains_since_s is None:
            return
        due = self._due(now_s)
        if isinstance(due, Due) and self._is_possible(due.rank):
            holder = self._job.holder(due.rank).worker
            self._spare = self._driver.spares.if_lost_now(due.rank) or self._own.ready_beside(holder)
            self._feed(Began(due.rank, holder, self._spare, due.reason), now_s)
        else:
            self._own.end()  # until the next one is due nobody needs it

    def _due(self, now_s: float) -> Due | NotDue:
        job = self._job
        shape = max((w.report.shape for w in job.rank_workers if w.report is not None), default=0)
        nobody = "" if any(w.warm for w in job.spares) or self._may_start else "no spare is warm"
        past = self.book.past
        busy = self._busy()
        since_s = self._trains_since_s
        about = RehearsalSituation(
            job.world_size, self._every_s, since_s, shape, past, nobody, busy, stands=self._in_check
        )
        return rehearse(about, now_s)

    def _is_possible(self, rank: int) -> bool:
        """Return whether the rank can be rehearsed. Write down why not, for reports."""
        spare = self._driver.spares.if_lost_now(rank)
        holder = self._job.holder(rank)
        if spare is None and (not self._may_start or any(not w.warm for w in self._job.spares)):
            return False  # one may come
        devices = () if spare is None else self._job.workers[spare].devices
        barred = ""
        if holder.devices and (not devices or set(holder.devices) & set(devices)):
            barred = f"rank {rank}: it would take memory of a device that a rank trains on"
        elif spare is None and self._job.is_away(holder):
            barred = f"rank {rank}: its machine cannot be reached"
        if barred != self.book.barred:
            self.book.barred = barred
            self._news()
        return not barred

    def _trains(self) -> bool:
        job = self._job
        reports = [w.report for w in job.rank_workers if w.report is not None]
        if job.protection != "on" or len(reports) < job.world_size or not all(r.settled for r in reports):
            return False
        if self._in_check:
            barred = any(gap.effect == BARS for report in reports for gap in report.gaps)
            return not barred and all(w.held or w.finishing for w in job.rank_workers)
        return self._is_compared()

    def _busy(self) -> str:
        job = self._job
        if job.protection != "on":
            return "the job is not protected"
        if self._driver.migration is not None:
            return "a migration is under way"
        if any((w.finishing and not self._in_check) or not w.alive for w in job.rank_workers):
            return "ranks are at their end"
        return ""

    def _lost_spare(self) -> str:
        if not self._spare or self._own.is_worker(self._spare):
            return ""
        spare = self._job.workers.get(self._spare)
        return "" if spare is not None and spare.is_spare else "its spare is none any more"

    def _feed(self, event: Event, now_s: float) -> None:
        for instruction in self._rehearsals.handle(event, now_s):
            match instruction:
                case StartProcess(beside):
                    self._own.start(beside)
                case ReadForRehearsal(worker):
                    self._outbox.to_agent_of(worker, FetchJournal(worker))
                case StartRehearsal():
                    self._start(instruction)
                case End(request, spare):
                    known = self._job.workers.get(spare)
                    if known is not None and known.is_spare:
                        self._outbox.to_worker(spare, EndRehearsal(request))
                case Judged(result, spare):
                    self._judged(result, spare, now_s)
                case _:
                    assert_never(instruction)

    def _start(self, start: StartRehearsal) -> None:
        content = start.content
        env = self._driver.environment(start.rank)
        journal = content.boundaries[start.boundary]
        order = Rehearse(start.request, start.rank, self._job.world_size, start.boundary, env, content.set_up, journal)
        self._outbox.to_worker(start.spare, order)
        self._outbox.emit(RehearsalStarted(start.rank, start.boundary, start.spare))

    def _judged(self, result: Rehearsed, spare: str, now_s: float) -> None:
        book = self.book
        job = self._job
        report = job.holder(result.rank).report
        judged = result.outcome not in (REHEARSAL_OPEN, REHEARSAL_BROKEN_OFF)
        failed = result.outcome in (REHEARSAL_FAILED, REHEARSAL_DIFFERS)
        doubted = failed and self._doubt(spare, result.rank, result.reason, now_s)
        book.past[result.rank] = Past(now_s, judged and not doubted, report.shape if report is not None else 0)
        if judged:
            book.judged[result.rank] = result
            book.open = ""
        elif result.outcome == REHEARSAL_OPEN or self._in_check:
            book.open = f"rank {result.rank}: {result.reason}"
        gaps = tuple({"text": g.text, "file": g.file, "line": g.line} for g in result.gaps)
        self._outbox.emit(
            RehearsalFinished(
                result.rank, job.world_size, result.boundary, spare, result.outcome, result.reason, gaps, result.took_s
            )
        )
        self._news()
