"""Lets spares rehearse: looks whether it is time, carries out what a rehearsal asks for, and keeps what has come of them."""

from __future__ import annotations

from collections.abc import Callable

from torchrelay.controller.decide.rehearse import Due, NotDue, Past, Situation, rehearse
from torchrelay.controller.driver import Driver
from torchrelay.controller.job import Job, RehearsalBook, Worker
from torchrelay.controller.outbox import Outbox
from torchrelay.controller.rehearsals import (
    Began,
    Disturbed,
    End,
    Event,
    JournalCame,
    Judged,
    ReadJournal,
    Rehearsals,
    ResultCame,
    Start,
    TimePassed,
)
from torchrelay.protocol.events import RehearsalFinished, RehearsalStarted
from torchrelay.protocol.messages import EndRehearsal, FetchJournal, JournalContent, Rehearse, Rehearsed
from torchrelay.protocol.names import REHEARSAL_BROKEN_OFF, REHEARSAL_OPEN


class RehearsalDesk:
    """`is_compared()`: whether all ranks have compared what they hold; `news()` is called when a rank was judged."""

    def __init__(
        self,
        every_s: float,
        job: Job,
        outbox: Outbox,
        driver: Driver,
        is_compared: Callable[[], bool],
        news: Callable[[], None],
    ) -> None:
        self._every_s, self._job, self._outbox, self._driver = every_s, job, outbox, driver
        self._is_compared, self._news = is_compared, news
        self._rehearsals = Rehearsals()
        self._spare = ""
        self._trains_since_s: float | None = None

    @property
    def book(self) -> RehearsalBook:
        return self._job.rehearsals

    def result(self, worker: Worker, result: Rehearsed, now_s: float) -> None:
        self._feed(ResultCame(worker.worker, result), now_s)

    def takes(self, content: JournalContent, now_s: float) -> bool:
        """Whether the journal was asked for from here; it is no newer state of the job then."""
        if not self._rehearsals.awaits_journal_of(content.worker):
            return False
        self._feed(JournalCame(content), now_s)
        return True

    def settle(self, now_s: float) -> None:
        """To be called when anything may have changed, and with the clock."""
        if self._every_s <= 0:
            return
        if self._rehearsals.rank is not None:
            busy = self._busy() or self._lost_spare()
            self._feed(Disturbed(busy) if busy else TimePassed(), now_s)
            return
        if self._trains_since_s is None and not self._trains():
            return
        if self._trains_since_s is None:
            self._trains_since_s = now_s
        due = self._due(now_s)
        if isinstance(due, Due):
            self._begin(due, now_s)

    def _due(self, now_s: float) -> Due | NotDue:
        job = self._job
        shape = max((w.report.shape for w in job.rank_workers if w.report is not None), default=0)
        book = self.book
        about = Situation(
            job.world_size, self._every_s, self._trains_since_s, shape, book.past, self._no_spare(0), self._busy()
        )
        due = rehearse(about, now_s)
        if isinstance(due, Due) and (why := self._no_spare(due.rank)):
            return NotDue(why)
        return due

    def _trains(self) -> bool:
        job = self._job
        reports = [w.report for w in job.rank_workers]
        settled = len(reports) == job.world_size and all(r is not None and r.settled for r in reports)
        return job.protection == "on" and settled and self._is_compared()

    def _busy(self) -> str:
        job = self._job
        if job.protection != "on":
            return "the job is not protected"
        if self._driver.migration is not None:
            return "a migration is under way"
        if any(w.finishing or not w.alive for w in job.rank_workers):
            return "ranks are at their end"
        return ""

    def _lost_spare(self) -> str:
        spare = self._job.workers.get(self._spare)
        return "" if spare is not None and spare.is_spare else "its spare is none any more"

    def _no_spare(self, rank: int) -> str:
        spare = self._driver.spares.if_lost_now(rank)
        if spare is None:
            return "no spare is warm"
        holder, there = self._job.holder(rank), self._job.workers[spare]
        if holder.devices and (not there.devices or set(holder.devices) & set(there.devices)):
            return "a rehearsal would take memory of a device that a rank trains on"
        return ""

    def _begin(self, due: Due, now_s: float) -> None:
        self._spare = self._driver.spares.if_lost_now(due.rank) or ""
        self._feed(Began(due.rank, self._job.holder(due.rank).worker, self._spare, due.reason), now_s)

    def _feed(self, event: Event, now_s: float) -> None:
        for instruction in self._rehearsals.handle(event, now_s):
            match instruction:
                case ReadJournal(worker):
                    self._outbox.to_agent_of(worker, FetchJournal(worker))
                case Start():
                    self._start(instruction)
                case End(request, spare):
                    known = self._job.workers.get(spare)
                    if known is not None and known.is_spare:
                        self._outbox.to_worker(spare, EndRehearsal(request))
                case Judged(result, spare):
                    self._judged(result, spare, now_s)

    def _start(self, start: Start) -> None:
        content, env = start.content, self._driver.environment(start.rank)
        journal = content.boundaries[start.boundary]
        order = Rehearse(start.request, start.rank, self._job.world_size, start.boundary, env, content.set_up, journal)
        self._outbox.to_worker(start.spare, order)
        self._outbox.emit(RehearsalStarted(start.rank, start.boundary, start.spare))

    def _judged(self, result: Rehearsed, spare: str, now_s: float) -> None:
        book, job = self.book, self._job
        report = job.holder(result.rank).report
        judged = result.outcome not in (REHEARSAL_OPEN, REHEARSAL_BROKEN_OFF)
        book.past[result.rank] = Past(now_s, judged, report.shape if report is not None else 0)
        if judged:
            book.judged[result.rank], book.open = result, ""
        elif result.outcome == REHEARSAL_OPEN:
            book.open = f"rank {result.rank}: {result.reason}"
        gaps = tuple({"text": g.text, "file": g.file, "line": g.line} for g in result.gaps)
        self._outbox.emit(
            RehearsalFinished(
                result.rank, job.world_size, result.boundary, spare, result.outcome, result.reason, gaps, result.took_s
            )
        )
        self._news()
