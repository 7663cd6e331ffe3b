"""Keeps the wanted number of spares: makes them where a process has ended or a user has asked, and ends useless ones."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass

from torchrelay.controller.decide.replacement.elsewhere import MachineWithPlaces
from torchrelay.controller.decide.replacement.more_spares import MachineForSpares, place_more
from torchrelay.controller.decide.replacement.refill import (
    MOST_UNUSED,
    PING_EVERY_S,
    Make,
    MakeNone,
    Pool,
    SeenSpare,
    VacatedPlace,
    look_after,
    refill,
)
from torchrelay.controller.decide.replacement.respawn import HOUR_S
from torchrelay.controller.execution.driver import Driver
from torchrelay.controller.outbox import Outbox
from torchrelay.controller.picture.job import Job
from torchrelay.controller.picture.worker import Worker
from torchrelay.protocol.events import SpareDropped, SpareMade, SparesChanged
from torchrelay.protocol.messages import AddSparesReply, Fence, LateWorker, Ping, Pong, RaisePriority, StartWorker
from torchrelay.protocol.names import NO_RANK

LONGEST_LOOK_S = 2.0
"""The most time that counts between two looks: while this process did not run, answers to it could not be read."""


@dataclass
class _Life:
    """The life of one spare, as `refill.Seen` has it. `ping_in_s`: when it is asked next; `pinged`: the open question, or 0."""

    since_s: float = 0.0
    raised_s: float | None = 0.0
    silent_s: float = 0.0
    ping_in_s: float = PING_EVERY_S
    pinged: int = 0

    def passes(self, seconds: float) -> None:
        self.since_s += seconds
        self.ping_in_s -= seconds
        if self.raised_s is not None:
            self.raised_s += seconds
        if self.pinged:
            self.silent_s += seconds


@dataclass(frozen=True)
class _Asked:
    """A spare that the agent of `node` is to start. `is_more`: beyond those that the node is to have so far."""

    node: str
    is_more: bool = False


class SparePool:
    """The spares. `barred`: why none are made, by the user's choice; empty: they are.

    `is_ending()`: why no more are of use, or empty. `machines()`: all of the job.
    """

    def __init__(
        self,
        barred: str,
        job: Job,
        outbox: Outbox,
        driver: Driver,
        is_ending: Callable[[], str],
        machines: Callable[[], Sequence[MachineWithPlaces]],
    ) -> None:
        self._barred = barred
        self._job = job
        self._outbox = outbox
        self._driver = driver
        self._is_ending = is_ending
        self._machines = machines
        self._lives: dict[str, _Life] = {}
        self._asked: dict[str, _Asked] = {}
        """Spares that were asked for, by the place for which each was; empty: a new place."""
        self._more: Counter[str] = Counter()
        """By node, how many were asked for since the job began, and have not been started yet."""
        self._unused: list[tuple[float, str]] = []
        self._doubted: dict[tuple[int, str], str] = {}
        """Rank and what a rehearsal has shown -> the spare that has said so first."""
        self._pings = 0
        self._looked_s: float | None = None
        self._told: tuple[int, int, int, str] | None = None
        self._reason = ""

    @property
    def places_asked(self) -> Collection[str]:
        """The ended processes in whose place a spare is being made."""
        return self._asked.keys()

    @property
    def wanted(self) -> int:
        return sum(node.spares for node in self._job.nodes.values()) + self._more.total()

    @property
    def is_on(self) -> bool:
        """Whether new spares are made."""
        return not self._barred

    @property
    def reason(self) -> str:
        """Why no more are made now; empty where there are as many as there are to be."""
        return self._barred if self._barred and len(self._usable()) < self.wanted else self._reason

    @property
    def making(self) -> int:
        return len(self._asked) + sum(not w.warm for w in self._usable())

    @property
    def has_refilled(self) -> bool:
        """Whether a spare that is not ready is made in place of another one."""
        return bool(self._asked) or any(not w.warm and w.in_place_of for w in self._usable())

    def settle(self, now_s: float) -> None:
        """Look after the spares. To be called when anything may have changed, and with the clock."""
        if self._barred:
            return
        passed_s = 0.0 if self._looked_s is None else min(now_s - self._looked_s, LONGEST_LOOK_S)
        self._looked_s = now_s
        self._note_ends(now_s)
        if self._driver.migration is None:
            for worker in self._spares():
                self._look_after(worker, passed_s, now_s)
        for place, asked in list(self._asked.items()):
            if self._job.nodes[asked.node].lost:
                del self._asked[place]
        for node in [n for n in self._more if self._job.nodes[n].lost]:
            del self._more[node]
        verdict = refill(self._pool(now_s), now_s)
        if isinstance(verdict, Make):
            under_way = sum(a.is_more for a in self._asked.values() if a.node == verdict.node)
            is_more = self._more[verdict.node] > under_way
            self._asked[verdict.worker] = _Asked(verdict.node, is_more)
            self._outbox.to_agent(verdict.node, StartWorker(NO_RANK, verdict.worker, idle=True, more=is_more))
        self._job.spares_coming = len(self._asked)
        self._reason = verdict.reason if isinstance(verdict, MakeNone) else ""
        self._tell()

    def started(self, node: str, message: LateWorker, now_s: float) -> None:
        """Take in an agent's answer. The process is among the job's workers already, if there is one."""
        asked = self._asked.get(message.in_place_of)
        if message.rank != NO_RANK or asked is None or asked.node != node:
            return
        del self._asked[message.in_place_of]
        self._job.spares_coming = len(self._asked)
        if message.pid == 0 and asked.is_more:
            left = self._more.pop(node, 0)
            why = f"it could not be started: {message.reason}; {left} that were asked for on {node} are not made"
            self._outbox.emit(SpareDropped(message.worker, why))
            return
        if message.pid == 0:
            self._came_to_nothing(message.worker, f"it could not be started: {message.reason}", now_s)
            return
        if asked.is_more and self._more[node]:
            self._more[node] -= 1
            self._job.nodes[node].spares += 1
        self._lives[message.worker] = _Life(raised_s=None)
        self._outbox.emit(SpareMade(message.worker, node, message.in_place_of))

    def add(self, count: int, node: str) -> AddSparesReply:
        """Have `count` more spares from now on, on `node` if that is not empty. All of them are accepted or none."""
        barred = self._barred or ("" if self._job.protection != "off" else self._job.protection_reason)
        if barred:
            return AddSparesReply(False, barred, self.wanted)
        if node and node not in self._job.nodes:
            return AddSparesReply(
                False, f"there is no node {node}; the job runs on {', '.join(self._job.nodes)}", self.wanted
            )
        found = place_more(count, [self._for_spares(m) for m in self._machines() if node in ("", m.node)])
        if found.reason or not found.nodes:
            return AddSparesReply(False, found.reason or "give how many, from 1 on", self.wanted)
        self._more += found.nodes
        where = ", ".join(f"{number} on {name}" for name, number in sorted(found.nodes.items()))
        return AddSparesReply(True, f"{where}; they are made one at a time, beside training", self.wanted)

    def _for_spares(self, machine: MachineWithPlaces) -> MachineForSpares:
        wanted = self._job.nodes[machine.node].spares + self._more[machine.node]
        return MachineForSpares(machine, wanted, max(0, wanted - self._spares_on(machine.node)))

    def answered(self, worker: Worker, report: Pong, now_s: float) -> None:
        life = self._lives.get(worker.worker)
        if life is not None and life.pinged == report.number:
            life.pinged = 0
            life.silent_s = 0.0
            life.ping_in_s = PING_EVERY_S

    def hurry(self) -> None:
        """Raise the priority of spares that are still importing: training waits for one, so none gives way any more."""
        for worker in self._spares():
            if not worker.warm:
                self._raise(worker)

    def end_stopped(self, rank: int) -> bool:
        """End the spares that are stopped, since `rank` needs a place of theirs. Return whether such a place is to come."""
        job = self._job
        for worker in job.spares_for(rank):
            if worker.stopped_since_s is not None and not job.unusable(worker) and not worker.told_to_end:
                self._end(worker, f"it is stopped, and rank {rank} needs its place", self._looked_s or 0.0)
        ending = (w for w in job.workers.values() if w.alive and w.told_to_end and w.rank == w.started_for == NO_RANK)
        return any(job.may_go_on(rank, w.node) and not job.unusable(w) for w in ending if not w.rehearses)

    def doubt(self, worker: str, rank: int, shown: str, now_s: float) -> bool:
        """Take note that a rehearsal of `rank` in this spare has failed.

        Return whether the spare is replaced, and another one is to be heard.
        Two that say the same are right: the rank cannot be replaced, and no further spare is used up.
        """
        known = self._job.workers[worker]
        recent = sum(now_s - at_s < HOUR_S for at_s, _ in self._unused)
        if (
            self._barred
            or known.rehearses
            or known.rank != NO_RANK
            or self._job.quarantined(known)
            or recent >= MOST_UNUSED - 1
        ):
            return False
        if self._doubted.setdefault((rank, shown), worker) != worker:
            return False
        self._end(known, f"its rehearsal of rank {rank} has failed: {shown}", now_s)
        return True

    def _spares(self) -> list[Worker]:
        """Return the spares that could be of use, or were to be; none that was ended."""
        return [
            w
            for w in self._job.workers.values()
            if w.alive and not w.rehearses and w.rank == w.started_for == NO_RANK and not w.told_to_end
        ]

    def _usable(self) -> list[Worker]:
        return [w for w in self._spares() if w.is_spare and not self._job.quarantined(w)]

    def _pool(self, now_s: float) -> Pool:
        there = len(self._usable()) + len(self._asked)
        if there >= self.wanted:
            return Pool(self.wanted, there)
        times = tuple(at_s for at_s, _ in self._unused)
        story = self._unused[-1][1] if self._unused else ""
        return Pool(self.wanted, there, self._places(), self._busy(), times, story)

    def _busy(self) -> str:
        if self._driver.migration is not None:
            return "a migration is under way"
        if self._job.protection == "off":
            return f"a spare could not take over: {self._job.protection_reason}"
        return self._is_ending()

    def _places(self) -> list[VacatedPlace]:
        job = self._job
        left = [
            VacatedPlace(w.worker, w.node, job.unusable(w), self._spares_on(w.node), self._is_to_have(w.node))
            for w in job.vacated(self._asked)
        ]
        left += [
            VacatedPlace(gpu, node.node, "", self._spares_on(node.node), self._is_to_have(node.node))
            for node in job.nodes.values()
            for gpu in job.free_gpus(node, self._asked)
        ]
        if not self._more.total() or "" in self._asked:
            return left
        new = [
            VacatedPlace("", m.node, m.unusable, self._spares_on(m.node), self._is_to_have(m.node))
            for m in self._machines()
            if self._more[m.node] and not m.has_gpus
        ]
        return left + new

    def _is_to_have(self, node: str) -> int:
        """Return how many spares the node is to have, with those that were asked for and not started yet."""
        return self._job.nodes[node].spares + self._more[node]

    def _spares_on(self, node: str) -> int:
        return sum(w.node == node for w in self._usable()) + sum(a.node == node for a in self._asked.values())

    def _look_after(self, worker: Worker, passed_s: float, now_s: float) -> None:
        life = self._lives.setdefault(worker.worker, _Life())
        if self._job.is_away(worker):
            life.pinged = 0
            life.silent_s = 0.0
            return
        life.passes(passed_s)
        if worker.warm and life.ping_in_s <= 0 and not life.pinged:
            self._pings += 1
            life.pinged = self._pings
            self._outbox.to_worker(worker.worker, Ping(self._pings))
        stopped_s = 0.0 if worker.stopped_since_s is None else now_s - worker.stopped_since_s
        seen = SeenSpare(
            worker.worker, worker.warm, life.since_s, life.raised_s, life.silent_s, stopped_s, worker.disabled
        )
        care = look_after(seen)
        if care.end:
            self._end(worker, care.end, now_s)
        elif care.hurry:
            self._raise(worker)

    def _raise(self, worker: Worker) -> None:
        life = self._lives.setdefault(worker.worker, _Life())
        if life.raised_s is None:
            life.raised_s = 0.0
            self._outbox.to_agent_of(worker.worker, RaisePriority(worker.worker))

    def _end(self, worker: Worker, why: str, now_s: float) -> None:
        worker.disabled = worker.disabled or why
        self._outbox.to_agent_of(worker.worker, Fence(worker.worker))
        self._came_to_nothing(worker.worker, why, now_s)

    def _note_ends(self, now_s: float) -> None:
        """Drop spares that have ended by themselves, or were taken for a rank."""
        for name in list(self._lives):
            worker = self._job.workers[name]
            if not worker.alive or worker.rank != NO_RANK:
                del self._lives[name]
            by_itself = not worker.alive and worker.rank == NO_RANK and not worker.told_to_end
            if by_itself and not self._job.is_lost_with_node(name):
                self._came_to_nothing(name, "it has ended by itself", now_s)

    def _came_to_nothing(self, worker: str, why: str, now_s: float) -> None:
        self._unused = [u for u in self._unused if now_s - u[0] < HOUR_S]
        self._unused.append((now_s, f"{worker}: {why}"))
        self._outbox.emit(SpareDropped(worker, why))

    def _tell(self) -> None:
        if self._driver.migration is not None:
            return  # what is spare, and what is not any more, is known when it is over
        ready = sum(w.warm for w in self._usable())
        now = self.wanted, ready, self.making, self.reason
        if now != self._told:
            self._told = now
            self._outbox.emit(SparesChanged(*now))
