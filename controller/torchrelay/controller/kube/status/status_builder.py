"""What a job's events say, in the form of its Migration resources. Pure: events in, statuses out."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from torchrelay.controller.kube.decide.ladder import TAKEN, Tried
from torchrelay.controller.kube.status.conditions import condition
from torchrelay.controller.kube.status.kube_events import KubeEvent, SparesEvents, events_of_rungs, tell
from torchrelay.controller.kube.status.losses import Loss, Losses, timestamp
from torchrelay.controller.kube.status.rungs import cost, lost_ranks, rung_of, taken_rungs
from torchrelay.protocol.errors import FrameError
from torchrelay.protocol.events import (
    Decision,
    JobFinished,
    MigrationFinished,
    MigrationStarted,
    MoveNotMade,
    PhaseChanged,
    Protection,
    SparesChanged,
    from_job_event,
)
from torchrelay.protocol.messages import JobEvent
from torchrelay.protocol.words.level import Level
from torchrelay.protocol.words.phases import ABANDONED, ACHIEVED, CHECKPOINT, COMMITTED, RESUME, SAVE, UNFORCED, Phase

DECISIONS_KEPT = 100
RESTARTING = "restarting"
"""Phase of a migration, and of its job, while the job waits for processes to begin again in."""
RESTARTED = "Restarted"
BEGUN_ANEW = "BegunAnew"
WAITING = "waiting"
REFUSED = "refused"
"""Outcome of a planned migration that never began."""


def pod_of(worker: str) -> str:
    """Return the pod of a process: `train-1:0a1b2c3d.1` is in the pod `train-1`."""
    return worker.partition(":")[0]


def precise(time_s: float) -> str:
    """Return a time stamp with microseconds: phases take less than a second."""
    return dt.datetime.fromtimestamp(time_s, dt.timezone.utc).strftime("%Y-%m-%dT%H:%M:%S.%fZ")


@dataclass
class MigrationStatus:
    """One Migration resource: `name`, `spec` for when it has to be made, and `status`. `changed`: to be written."""

    name: str
    spec: dict[str, Any]
    status: dict[str, Any] = field(default_factory=dict)
    exists: bool = False
    changed: bool = True
    uid: str = ""

    @property
    def is_over(self) -> bool:
        return bool(self.status.get("outcome"))


@dataclass(frozen=True)
class Left:
    """A rank has moved for good: `worker` is not needed any more. `planned`: it lived until then."""

    worker: str
    rank: int
    planned: bool
    reason: str


class StatusBuilder:
    """The story of a job. `holders()`: rank -> the worker that has it now.

    `prefix`: of the names of migrations that no user has asked for.
    `lost_at(rank)`: at which step the rank was lost last, and why no spare took it over, if that is so.
    """

    def __init__(
        self,
        job: str,
        prefix: str,
        holders: Callable[[], Mapping[int, str]],
        lost_at: Callable[[int], tuple[int, str]],
        losses: Losses,
    ) -> None:
        self._job = job
        self._prefix = prefix
        self._holders = holders
        self._lost_at = lost_at
        self.losses = losses
        self._begun: dict[str, tuple[float, str]] = {}
        """For each migration of lost ranks: since when the loss is known, and its reason."""
        self.begins_at: int | None = None
        """The step at which the job begins again, if it does."""
        self._by_number: dict[str, MigrationStatus] = {}
        self._leavers: dict[str, dict[int, str]] = {}
        self._continued: MigrationStatus | None = None
        self.migrations: list[MigrationStatus] = []
        self.left: list[Left] = []
        """Workers that have been replaced. The code that deletes their pods takes them out."""
        self.waiting: dict[str, MigrationStatus] = {}
        """By name, the migrations that people want and that cannot begin yet."""
        self.finished: JobFinished | None = None
        self.finished_s = 0.0
        """The time of day of the job's end."""
        self.anew: dict[str, str] | None = None
        """The condition that says why what was told of a job of the same name counts no more, if there was one."""
        self.kube_events: list[KubeEvent] = []
        """Events to write. The code that writes them takes them out."""
        self._spares = SparesEvents()

    def adopt(self, number: str, name: str) -> None:
        """Take note that the migration `number` was asked for with the resource `name`."""
        self.waiting.pop(name, None)
        known = self._by_number.get(number)
        if known is None:
            known = self._by_number[number] = MigrationStatus(name, {})
            self.migrations.append(known)
        known.name = name
        known.exists = True
        known.changed = True

    def refuse(self, name: str, kind: str, reason: str, time_s: float) -> None:
        """Write down that a Migration is refused. `kind`: planned, or save."""
        self.waiting.pop(name, None)
        story = MigrationStatus(name, {}, exists=True)
        at = timestamp(time_s)
        story.status = {"phase": REFUSED, "outcome": REFUSED, "reason": reason, "kind": kind, "finishedAt": at}
        self.migrations.append(story)

    def wait(self, name: str, kind: str, reason: str) -> None:
        """Write down that a migration which a person wants cannot begin yet."""
        story = self.waiting.setdefault(name, MigrationStatus(name, {}, exists=True))
        status = {"phase": WAITING, "kind": kind, "reason": reason}
        story.changed = story.changed or story.status != status
        story.status = status

    def fell(self, tried: Sequence[Tried], time_s: float) -> None:
        """Write down what was tried: the last migration has ended without a way on in these processes."""
        if not self.migrations:
            return
        story = self.migrations[-1]
        at = timestamp(time_s)
        rungs = _rungs(tried, at)
        number = next((n for n, s in self._by_number.items() if s is story), "")
        self.kube_events += events_of_rungs(tried, number, time_s)
        story.status["rungs"] = [*story.status.get("rungs", []), *rungs]
        if tried[-1].outcome == TAKEN:
            self.losses.begins_again(tried[-1].rung)
            story.status |= {"phase": RESTARTING, "outcome": CHECKPOINT}
        story.changed = True

    def begins_anew(self, reason: str, time_s: float) -> None:
        """Write down that the job begins anew, since there was a job of the same name."""
        self.anew = condition(BEGUN_ANEW, True, BEGUN_ANEW, reason, timestamp(time_s))
        self.kube_events.append(KubeEvent(False, BEGUN_ANEW, reason, time_s))

    def recall(self, namespace: str, migrations: Sequence[Mapping[str, Any]]) -> None:
        """Go on with the migration that another controller has told of, after which the job was to begin again."""
        for found in migrations:
            meta = found["metadata"]
            status = found.get("status") or {}
            is_ours = (meta["namespace"], found["spec"]["job"]) == (namespace, self._job)
            if is_ours and status.get("phase") == RESTARTING:
                self._continued = MigrationStatus(meta["name"], {}, dict(status), exists=True, changed=False)
                self.migrations.append(self._continued)

    def go_on(self, before: StatusBuilder) -> None:
        """Go on with the last migration of `before`: the job begins again after it, so it is not over yet."""
        if before.migrations:
            self._continued = before.migrations.pop()
            self.migrations.append(self._continued)

    def numbered(self, number: str) -> MigrationStatus | None:
        return self._by_number.get(number)

    def knows(self, name: str) -> bool:
        return any(m.name == name for m in self.migrations)

    def orphaned(self, name: str, status: Mapping[str, Any], holders: Mapping[int, str], time_s: float) -> None:
        """Close a migration that an earlier controller began and did not end. `holders`: the worker that has each rank now."""
        before = status.get("fromPod", "")
        now = pod_of(holders.get(status.get("rank", -1), ""))
        done = bool(now) and bool(before) and now != before
        reason = f"the controller that led it is gone; rank {status.get('rank')} lives in pod {now or 'none'}"
        story = MigrationStatus(name, {}, dict(status), exists=True)
        outcome = COMMITTED if done else ABANDONED
        story.status |= {
            "outcome": outcome,
            "phase": outcome,
            "finishedAt": timestamp(time_s),
            "toPod": now if done else "",
        }
        self._decided(story, reason)
        if not done:
            story.status["reason"] = reason
        self.migrations.append(story)

    def take(self, event: JobEvent) -> None:
        """Take in an event. One that is not known is left out: the event log has it."""
        try:
            what = from_job_event(event)
        except FrameError:
            return
        if (kube_event := tell(what, event.time_s)) is not None:
            self.kube_events.append(kube_event)
        if isinstance(what, SparesChanged) and (kube_event := self._spares.tell(what, event.time_s)) is not None:
            self.kube_events.append(kube_event)
        if isinstance(what, MigrationStarted):
            self._started(what, event.time_s)
        elif isinstance(what, PhaseChanged):
            self._phase(what, event.time_s)
        elif isinstance(what, Decision) and (story := self._by_number.get(what.migration)):
            self._decided(story, what.text)
        elif isinstance(what, MigrationFinished):
            self._finished(what, event.time_s)
        elif isinstance(what, MoveNotMade) and (story := self._by_number.get(what.migration)):
            self._decided(story, what.reason)
        elif isinstance(what, Protection) and what.level != Level.UNPROTECTED:
            self._began_again(True, what.reason, event.time_s)
        elif isinstance(what, JobFinished):
            self.finished = what
            self.finished_s = event.time_s

    def _began_again(self, done: bool, reason: str, time_s: float) -> None:
        story = self._continued
        if story is None or any(c["type"] == RESTARTED for c in story.status.get("conditions", ())):
            return
        if done:
            reason = f"{reason}; {self._price(time_s)}"
            self.kube_events.append(KubeEvent(False, RESTARTED, reason, time_s))
            restarted = condition(RESTARTED, True, "Restarted", reason, timestamp(time_s))
            story.status["conditions"] = [*story.status.get("conditions", ()), restarted]
            story.status["phase"] = RESTARTED.lower()
        self._decided(story, reason)

    def _price(self, time_s: float) -> str:
        """Return in words what it has cost to begin again."""
        loss = self.losses.goes_on(time_s, self.begins_at)
        return cost(loss.seconds, loss.steps_redone) if loss is not None else "it is not known since when it stood"

    def _decided(self, story: MigrationStatus, text: str) -> None:
        story.status["decisions"] = [*story.status.get("decisions", []), text][-DECISIONS_KEPT:]
        story.changed = True

    def _started(self, what: MigrationStarted, time_s: float) -> None:
        if what.kind == RESUME and self._continued is not None:
            self._decided(self._continued, what.reason)
            self._by_number[what.migration] = self._continued
            return
        story = self._by_number.get(what.migration)
        if story is None:
            what_for: dict[str, Any] = {"save": True} if what.kind == SAVE else {"rank": what.rank}
            spec = {"job": self._job, **what_for, "reason": what.reason[:1024]}
            story = MigrationStatus(f"{self._prefix}-{what.migration}", spec)
            self._by_number[what.migration] = story
            self.migrations.append(story)
        if what.kind not in UNFORCED:
            self._begun.setdefault(what.migration, (time_s, what.reason))
        holder = self._holders().get(what.rank, "")
        self._leavers[what.migration] = dict(self._holders())
        story.status |= ({"rank": what.rank} if what.rank >= 0 else {}) | {
            "kind": what.kind,
            "reason": what.reason,
            "generation": what.generation,
            **({"requestedBy": what.by} if what.by else {}),
            "fromPod": pod_of(holder),
            "startedAt": story.status.get("startedAt") or timestamp(time_s),
        }
        story.changed = True

    def _phase(self, what: PhaseChanged, time_s: float) -> None:
        if (story := self._by_number.get(what.migration)) is None:
            return
        phases = story.status.setdefault("phases", [])
        if phases:
            phases[-1]["seconds"] = round(what.before_s, 4)
        if what.phase != Phase.HEALTHY.value:
            phases.append({"phase": what.phase, "at": precise(time_s)})
        story.status["phase"] = what.phase
        story.changed = True

    def _finished(self, what: MigrationFinished, time_s: float) -> None:
        if (story := self._by_number.get(what.migration)) is None:
            return
        at = timestamp(time_s)
        if what.kind == RESUME:
            self._began_again(what.outcome == COMMITTED, what.reason, time_s)
            return
        if what.outcome == COMMITTED:
            self._decided(story, what.reason)
        else:
            story.status["reason"] = what.reason
        story.status |= {
            "outcome": what.outcome,
            "finishedAt": at,
            "conditions": [condition("Complete", what.outcome in ACHIEVED, what.outcome.capitalize(), what.reason, at)],
            "toPod": pod_of(what.spare),
            "generation": what.generation,
            "stepsRedone": what.steps_redone,
            "downtimeSeconds": round(sum(what.downtime_s.values()), 4),
        }
        self._account(what, story, time_s)
        if len(what.ranks) > 1:
            story.status["ranks"] = list(what.ranks)
        story.changed = True
        leavers = self._leavers.pop(what.migration, {})
        if what.outcome == COMMITTED:
            others = [worker for rank, worker in self._holders().items() if rank not in what.ranks]
            stay = {worker.rpartition(".")[0] for worker in (*what.spares, *others)}
            for rank in what.ranks:
                if leavers.get(rank) and leavers[rank].rpartition(".")[0] not in stay:
                    self.left.append(Left(leavers[rank], rank, what.kind == "planned", what.reason))

    def _account(self, what: MigrationFinished, story: MigrationStatus, time_s: float) -> None:
        """Write down the losses of a migration, and which rung was taken. Where none is yet, `fell` will tell."""
        begun_s, why = self._begun.pop(what.migration, (time_s, what.reason))
        if what.kind in UNFORCED:
            return
        leavers = self._leavers.get(what.migration, {})
        if what.outcome != COMMITTED:
            step, _ = self._lost_at(what.rank)
            self.losses.add(Loss(what.rank, step, begun_s, why))
            return
        seconds = sum(what.downtime_s.values())
        for rank, joiner in lost_ranks(what).items():
            step, _ = self._lost_at(rank)
            rung = rung_of(leavers.get(rank, ""), joiner)
            self.losses.add(Loss(rank, step, begun_s, why, rung, seconds, what.steps_redone))
        tried = taken_rungs(what, leavers, {rank: self._lost_at(rank)[1] for rank in what.ranks})
        story.status["rungs"] = _rungs(tried, timestamp(time_s))
        self.kube_events += events_of_rungs(tried, what.migration, time_s)


def _rungs(tried: Sequence[Tried], at: str) -> list[dict[str, str]]:
    return [{"rung": t.rung, "outcome": t.outcome, "reason": t.reason, "at": at} for t in tried]
