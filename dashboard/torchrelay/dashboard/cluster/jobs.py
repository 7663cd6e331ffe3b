"""All jobs of a cluster as their controller tells of them, in bounded memory. No I/O."""

from __future__ import annotations

import time
from collections.abc import Callable

from torchrelay.dashboard import words
from torchrelay.dashboard.hub import Answer, Hub, RunsNote
from torchrelay.dashboard.record import Bounds, ClusterJob, RunRecord
from torchrelay.dashboard.view import Seen
from torchrelay.protocol.errors import FrameError
from torchrelay.protocol.events import from_job_event
from torchrelay.protocol.kube.job_feed import (
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
BOUNDS = Bounds(migrations=200, heard=80)
COUNT_EVERY = 1000
"""So many events are taken before those that are kept are counted again."""
UNUSED = {"rank_report", "log"}
HISTORY = "kubectl torchrelay history -n NAMESPACE"
BEGIN = "kubectl torchrelay inject -f job.yaml | kubectl apply -f -"
READ_ONLY = "this dashboard is read-only: use kubectl torchrelay"


class FollowedJob:
    """One job. `problem()`: why nothing is heard of any job; `since_s`: when the controller began to tell of this one."""

    def __init__(self, seen: JobSeen, since_s: float, clock: Callable[[], float], problem: Callable[[], str]) -> None:
        self.job = ClusterJob(seen.namespace, seen.job)
        self.record = RunRecord(run_id_of(seen.namespace, seen.job), self.job, BOUNDS)
        self.lineage, self.owner, self.taken_over = seen.lineage, seen.owner, seen.taken_over
        self.gone_s: float | None = None
        self.known_s = 0.0
        """Events up to this time were taken before the feed was cut off."""
        self.told_of = True
        """Since the feed began."""
        self._since_s, self._clock, self._problem = since_s, clock, problem

    def seen(self) -> Seen:
        now_s = self._clock() if self.gone_s is None else self.gone_s
        why = "" if self.gone_s is None else "the controller looks after it no more: none of its pods is there"
        return Seen(self.record, now_s, self.owner, unreachable=why or self._problem(), note=self._note())

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

    async def migrate(self, rank: int, reason: str) -> Answer:
        return Answer(False, READ_ONLY)

    async def clear(self, subject: str, reason: str, check: bool) -> Answer:
        return Answer(False, READ_ONLY)


def run_id_of(namespace: str, job: str) -> str:
    """Return the job's name in addresses of pages. A later job of the same name has the same one."""
    return f"{namespace}.{job}"


class ClusterJobs:
    """The jobs of a cluster. `ttl_s`: how long jobs that are gone are kept; below 0: as long as there is room."""

    def __init__(self, ttl_s: float, clock: Callable[[], float] = time.time) -> None:
        self._ttl_s, self._clock = ttl_s, clock
        self._jobs: dict[str, FollowedJob] = {}
        self._barred: dict[str, BarredSubject] = {}
        self.leading: FeedLeader | None = None
        self.problem = "the controller beside this dashboard has not said anything yet"
        """Why nothing is heard; empty while something is."""
        self.hub = Hub(most=JOBS_KEPT + 1, about=self.about, noun="job")
        self._uncounted, self._rounds, self._leads_since_s = 0, 0, 0.0

    def connected(self) -> None:
        """Prepare for a new feed, which tells again what the previous one has told."""
        self.problem, self.leading, self._rounds = "", None, 0
        for followed in self._jobs.values():
            followed.known_s, followed.told_of = followed.record.newest_s, False

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
                    followed.gone_s = self._clock()
            case Barred():
                self._barred.clear()  # the records look at this one
                self._barred.update({s.device or s.node: s for s in line.subjects})

    def _leading(self, line: FeedLeader) -> None:
        """Note who leads. The controller repeats this line, and tells of all jobs in between: a job that it left out is gone."""
        self._rounds = self._rounds + 1 if line == self.leading else 0
        if line.leads and not self._leads_since_s:
            self._leads_since_s = self._clock()
        self.leading = line
        if self._rounds and line.leads:
            for followed in self._jobs.values():
                if not followed.told_of and followed.gone_s is None:
                    followed.gone_s = self._clock()

    def sweep(self) -> None:
        """Drop jobs that have been gone for long enough."""
        if self._ttl_s < 0:
            return
        now_s = self._clock()
        over = [i for i, f in self._jobs.items() if f.gone_s is not None and now_s - f.gone_s >= self._ttl_s]
        for run_id in over:
            self._drop(run_id)

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
            known.gone_s, known.told_of = None, True
            return
        self._drop(run_id)
        made = FollowedJob(line, self._clock(), self._clock, lambda: self.problem)
        made.record.barred = self._barred
        self._jobs[run_id] = made
        self.hub.put(run_id, made)
        if len(self._jobs) > JOBS_KEPT:
            gone = (i for i, f in self._jobs.items() if f.gone_s is not None)
            self._drop(next(gone, next(iter(self._jobs))))

    def _told(self, line: JobTold) -> None:
        if (followed := self._jobs.get(run_id_of(line.namespace, line.job))) is None:
            return
        followed.take(line.event)
        self._uncounted += 1
        if self._uncounted >= COUNT_EVERY:
            self._uncounted = 0
            self._make_room()

    def _make_room(self) -> None:
        """Drop jobs that are gone, the oldest first; then the oldest migrations of the job that keeps the most events."""
        kept = {run_id: followed.record.kept for run_id, followed in self._jobs.items()}
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

    def _drop(self, run_id: str) -> None:
        self._jobs.pop(run_id, None)
        self.hub.drop(run_id)
