"""All jobs of a cluster as their controller tells of them, in bounded memory. No I/O."""

from __future__ import annotations

import time
from collections.abc import Callable

from torchrelay.dashboard import words
from torchrelay.dashboard.cluster.asks import ControllerAsks
from torchrelay.dashboard.cluster.kept import BOUNDS, KeptJob, KeptJobs
from torchrelay.dashboard.event_writer import EventWriter
from torchrelay.dashboard.hub import Answer, Hub, RunsNote
from torchrelay.dashboard.record import RunRecord
from torchrelay.dashboard.run_facts import ClusterJob
from torchrelay.dashboard.view import Seen
from torchrelay.protocol.errors import FrameError
from torchrelay.protocol.events import from_job_event
from torchrelay.protocol.kube.dashboard_asks import AskToClear, AskToMove
from torchrelay.protocol.kube.job_feed import (
    AskAnswered,
    Barred,
    BarredSubject,
    FeedLeader,
    FeedLine,
    JobGone,
    JobPlaces,
    JobSeen,
    JobTold,
)
from torchrelay.protocol.messages import JobEvent

JOBS_KEPT = 2000
EVENTS_KEPT = 200_000
"""One by one, of all jobs together: what is older is in the totals alone."""
PAST_SHOWN = 20
"""Of the jobs that are kept and over."""
COUNT_EVERY = 1000
"""So many events are taken before those that are kept are counted again."""
UNUSED = {"rank_report", "log"}
HISTORY = "kubectl torchrelay history -n NAMESPACE"
BEGIN = "kubectl torchrelay inject -f job.yaml | kubectl apply -f -"
OVER = "the job is over, or its controller looks after it no more: nothing can be asked of it"


class FollowedJob:
    """One job. `problem()`: why nothing is heard of any job; `since_s`: when the controller began to tell of this one.

    `kept`, `writer`: where its events are kept, if they are. Then `record` is what was kept of it before.
    `asks`: asks the controller for something; None: nobody may.
    """

    def __init__(
        self,
        seen: JobSeen,
        since_s: float,
        clock: Callable[[], float],
        problem: Callable[[], str],
        kept: KeptJob | None = None,
        record: RunRecord | None = None,
        writer: EventWriter | None = None,
        asks: ControllerAsks | None = None,
    ) -> None:
        self.job = ClusterJob(seen.namespace, seen.job)
        self.record = record or RunRecord(run_id_of(seen.namespace, seen.job), self.job, BOUNDS)
        self.kept = kept
        self.writer = writer
        self.lineage = seen.lineage
        self.owner = seen.owner
        self.taken_over = seen.taken_over
        self.gone_s: float | None = None
        self.known_s = self.record.newest_s if record else 0.0
        """Events up to this time were taken before the feed was cut off, or by the dashboard before this one."""
        self.told_of = True
        """Since the feed began."""
        self._since_s = since_s
        self._clock = clock
        self._problem = problem
        self._asks = asks

    def seen(self) -> Seen:
        now_s = self._clock() if self.gone_s is None else self.gone_s
        why = "" if self.gone_s is None else "the controller looks after it no more: none of its pods is there"
        unreachable = why or self._problem()
        actions = self._asks is not None and not unreachable and self.record.ended is None
        return Seen(self.record, now_s, self.owner, unreachable=unreachable, note=self._note(), actions=actions)

    def _note(self) -> str:
        if not self.taken_over:
            return ""
        since = time.strftime("%H:%M:%S", time.gmtime(self._since_s))
        history = f"kubectl torchrelay history {self.job.name} -n {self.job.namespace}"
        return (
            f"This controller took the job over at {since} UTC, and times count from then. What was before: {history}"
        )

    def take(self, event: JobEvent) -> None:
        """Take an event. Events that this version does not know are left out."""
        if event.time_s <= self.known_s or (event.name in UNUSED and self.record.first_step_s is not None):
            return
        try:
            self.record.take(from_job_event(event), event.time_s)
        except FrameError:  # of a controller of another version
            return
        if self.writer is not None:
            self.writer.take(event)

    async def migrate(self, rank: int, reason: str, by: str) -> Answer:
        if self._asks is None or self.gone_s is not None:
            return Answer(False, OVER)
        namespace = self.job.namespace
        job = self.job.name
        return await self._asks.ask(lambda number: AskToMove(number, namespace, job, rank, reason, by))

    async def clear(self, subject: str, reason: str, check: bool, by: str) -> Answer:
        if self._asks is None or self.gone_s is not None:
            return Answer(False, OVER)
        namespace = self.job.namespace
        job = self.job.name
        return await self._asks.ask(lambda number: AskToClear(number, namespace, job, subject, reason, by))


class PastJob:
    """A job that is over. What was kept of it is shown."""

    def __init__(self, kept: KeptJob, record: RunRecord) -> None:
        self._kept = kept
        self.record = record

    def seen(self) -> Seen:
        untold = (
            "" if self.record.ended is not None else "no end was told here: another controller went on, or none led"
        )
        began = time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime(self._kept.began_s))
        owner = self._kept.owner
        end_s = self.record.newest_s
        return Seen(self.record, end_s, owner, unreachable=untold, when=f"began {began}", is_over=True)

    async def migrate(self, rank: int, reason: str, by: str) -> Answer:
        return Answer(False, OVER)

    async def clear(self, subject: str, reason: str, check: bool, by: str) -> Answer:
        return Answer(False, OVER)


def run_id_of(namespace: str, job: str) -> str:
    """Return the job's name in addresses of pages. A later job of the same name has the same one."""
    return f"{namespace}.{job}"


class ClusterJobs:
    """The jobs of a cluster. `ttl_s`: how long jobs that are gone are kept; below 0: as long as there is room.

    `kept`: where events are written, and earlier ones are read; None: nowhere.
    `asks`: asks the controller for something; None: nobody may.
    """

    def __init__(
        self,
        ttl_s: float,
        clock: Callable[[], float] = time.time,
        kept: KeptJobs | None = None,
        asks: ControllerAsks | None = None,
    ) -> None:
        self._ttl_s = ttl_s
        self._clock = clock
        self._kept = kept
        self.asks = asks
        self._jobs: dict[str, FollowedJob] = {}
        self._past: dict[str, PastJob] = {}
        self._recalled = False
        self._barred: dict[str, BarredSubject] = {}
        self.leading: FeedLeader | None = None
        self.problem = "the controller beside this dashboard has not said anything yet"
        """Why nothing is heard; empty while something is."""
        self.hub = Hub(most=JOBS_KEPT + PAST_SHOWN + 1, about=self.about, noun="job")
        self._uncounted = 0
        self._rounds = 0
        self._leads_since_s = 0.0

    def connected(self) -> None:
        """Prepare for a new feed, which tells again what the previous one has told."""
        self.problem = ""
        self.leading = None
        self._rounds = 0
        self._forget_kept()
        for followed in self._jobs.values():
            followed.known_s = followed.record.newest_s
            followed.told_of = False

    def take(self, line: FeedLine) -> None:
        """Take a line of the controller's feed."""
        match line:
            case FeedLeader():
                self._leading(line)
            case JobSeen():
                self._job_seen(line)
            case JobTold():
                self._told(line)
            case JobPlaces():
                if (followed := self._jobs.get(run_id_of(line.namespace, line.job))) is not None:
                    followed.record.machines = line.nodes
            case JobGone():
                if (followed := self._jobs.get(run_id_of(line.namespace, line.job))) is not None:
                    self._gone(followed)
            case Barred():
                self._barred.clear()  # the records look at this one
                self._barred.update({s.device or s.node: s for s in line.subjects})
            case AskAnswered() if self.asks is not None:
                self.asks.answered(line)

    def _leading(self, line: FeedLeader) -> None:
        """Note who leads. The controller repeats this line, and tells of all jobs in between: a job that it left out is gone."""
        self._rounds = self._rounds + 1 if line == self.leading else 0
        if line.leads and not self._leads_since_s:
            self._leads_since_s = self._clock()
        if not line.leads:
            self._forget_kept()  # another dashboard writes there
        self.leading = line
        if self._rounds and line.leads:
            for followed in self._jobs.values():
                if not followed.told_of and followed.gone_s is None:
                    self._gone(followed)

    def sweep(self) -> None:
        """Drop jobs that have been gone for long enough."""
        if self._ttl_s < 0:
            return
        now_s = self._clock()
        over = [i for i, f in self._jobs.items() if f.gone_s is not None and now_s - f.gone_s >= self._ttl_s]
        for run_id in over:
            self._retire(run_id)

    @property
    def is_list_due(self) -> bool:
        """Return whether `list_kept` is to be called before the next line is taken."""
        leads = self.leading is not None and self.leading.leads
        return self._kept is not None and leads and not self._kept.is_listed

    def list_kept(self) -> None:
        """Look what is kept of earlier jobs. This takes time."""
        assert self._kept is not None
        self._kept.list_again()

    def to_recall(self) -> list[KeptJob]:
        """Return the newest kept jobs that are over, the oldest of them first. Only once, when the controller here leads."""
        if self._kept is None or self._recalled or self.leading is None or not self.leading.leads:
            return []
        self._recalled = True
        return self._kept.newest()[:PAST_SHOWN][::-1]

    def read(self, job: KeptJob) -> RunRecord:
        """Read what was kept of a job. This takes time."""
        assert self._kept is not None
        return self._kept.record_of(job)

    def recall(self, job: KeptJob, record: RunRecord) -> None:
        """Show a job that is over. If there are too many, forget the oldest."""
        self._past[job.folder_name] = past = PastJob(job, record)
        self.hub.put(job.folder_name, past)
        while len(self._past) > PAST_SHOWN:
            self._forget_past()

    def about(self) -> RunsNote:
        """Return the note beside the list of jobs."""
        if self.problem or self.leading is None:
            return RunsNote("", "", words.sentence(self.problem or "the controller has not said who leads"))
        if self.leading.leads:
            since = time.strftime("%Y-%m-%d %H:%M:%S", time.gmtime(self._leads_since_s))
            note = f"{self.leading.pod} leads. This page has what it has heard since {since} UTC. What ended before: {HISTORY}"
            return RunsNote("No job trains whose pods torchrelay was asked to protect.", BEGIN, note)
        who = f"{self.leading.leader} leads" if self.leading.leader else "no controller leads"
        again = "kubectl torchrelay dashboard"
        return RunsNote(
            "", "", f"This replica ({self.leading.pod}) waits, and knows of no job: {who}. Begin again: {again}"
        )

    def _job_seen(self, line: JobSeen) -> None:
        run_id = run_id_of(line.namespace, line.job)
        known = self._jobs.get(run_id)
        if known is not None and known.lineage == line.lineage:
            if known.gone_s is not None and self._kept is not None:
                known.kept, known.writer = self._kept.begin(line, self._clock())
            known.gone_s = None
            known.told_of = True
            return
        self._retire(run_id)
        made = self._begun(line)
        made.record.barred = self._barred
        self._jobs[run_id] = made
        self.hub.put(run_id, made)
        if len(self._jobs) > JOBS_KEPT:
            gone = (i for i, f in self._jobs.items() if f.gone_s is not None)
            self._drop(next(gone, next(iter(self._jobs))))

    def _begun(self, line: JobSeen) -> FollowedJob:
        now_s = self._clock()
        if self._kept is None:
            return FollowedJob(line, now_s, self._clock, lambda: self.problem, asks=self.asks)
        job, writer = self._kept.begin(line, now_s)
        if self._past.pop(job.folder_name, None) is not None:
            self.hub.drop(job.folder_name)
        record = self._kept.record_of(job)
        return FollowedJob(line, now_s, self._clock, lambda: self.problem, job, record, writer, self.asks)

    def _told(self, line: JobTold) -> None:
        if (followed := self._jobs.get(run_id_of(line.namespace, line.job))) is None:
            return
        followed.take(line.event)
        self._uncounted += 1
        if self._uncounted >= COUNT_EVERY:
            self._uncounted = 0
            self._make_room()

    def _make_room(self) -> None:
        """Drop jobs that are over or gone, the oldest first; then the oldest migrations of the job that keeps the most events."""
        kept = {run_id: followed.record.kept for run_id, followed in self._jobs.items()}
        while self._past and sum(kept.values()) + sum(p.record.kept for p in self._past.values()) > EVENTS_KEPT:
            self._forget_past()
        gone = [run_id for run_id, followed in self._jobs.items() if followed.gone_s is not None]
        while sum(kept.values()) > EVENTS_KEPT and gone:
            self._drop(gone[0])
            del kept[gone.pop(0)]
        while sum(kept.values()) > EVENTS_KEPT:
            most = max(kept, key=lambda run_id: kept[run_id])
            record = self._jobs[most].record
            record.forget_stories(len(record.migrations) // 2)
            if record.kept == kept[most]:
                return  # what is left is bounded for each job
            kept[most] = record.kept

    def _retire(self, run_id: str) -> None:
        """Drop a job whose name another job has from now on, or whose time is over. What is kept of it is still shown."""
        followed = self._jobs.get(run_id)
        self._drop(run_id)
        if followed is not None and followed.kept is not None:
            self.recall(followed.kept, followed.record)

    def _forget_past(self) -> None:
        """Forget the oldest job that is over. It stays in its folder."""
        oldest = next(iter(self._past))
        del self._past[oldest]
        self.hub.drop(oldest)

    def _drop(self, run_id: str) -> None:
        if (followed := self._jobs.pop(run_id, None)) is not None:
            self._end(followed)
        self.hub.drop(run_id)

    def _gone(self, followed: FollowedJob) -> None:
        followed.gone_s = self._clock()
        self._end(followed)

    def _forget_kept(self) -> None:
        if self._kept is not None:
            self._kept.forget()

    def _end(self, followed: FollowedJob) -> None:
        if self._kept is not None and followed.kept is not None:
            self._kept.end(followed.kept)
