"""Starts new processes for lost ranks, in their place or where another machine has one: asks the agent, and remembers how often."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Iterable
from dataclasses import replace

from torchrelay.controller.decide.replacement.elsewhere import Elsewhere, MachineWithPlaces, choose_machine, lacks
from torchrelay.controller.decide.replacement.respawn import HOUR_S, LostPlace, Respawn, comes_again, may_respawn
from torchrelay.controller.migration import events as m
from torchrelay.controller.outbox import Outbox
from torchrelay.controller.picture.job import Job
from torchrelay.controller.picture.worker import Worker
from torchrelay.protocol.events import ProcessRespawned
from torchrelay.protocol.health.kinds import DRIVER
from torchrelay.protocol.messages import StartWorker
from torchrelay.protocol.names import NO_RANK
from torchrelay.protocol.words.process_ends import how_ended

LOSSES_KEPT = 16
"""Losses that are kept of each rank: those at its latest step are among them."""


class Respawns:
    """The processes that were started. `limit`: how often within an hour for each rank; 0: never. `option`: what sets it."""

    def __init__(self, limit: int, job: Job, outbox: Outbox, option: str = "--respawn-limit") -> None:
        self._limit = limit
        self._job = job
        self._outbox = outbox
        self._option = option
        self.is_possible: Callable[[], bool] = lambda: True
        """Returns whether a process would be started for each rank."""
        self.asked_for_spares: Callable[[], Collection[str]] = tuple
        """Returns the ended processes in whose place spares are being made."""
        self._starting: dict[int, str] = {}
        """Rank -> the ended process in whose place one was asked for; empty where it has a new place."""
        self._entering: set[int] = set()
        """Ranks for which a process was asked for that enters from a checkpoint."""
        self._started_s: dict[int, list[float]] = defaultdict(list)
        self._losses: dict[int, dict[int, int]] = defaultdict(dict)
        """For each rank and migration number: the boundary that the migration has found the rank at."""
        self._ends: dict[int, dict[int, str]] = defaultdict(dict)
        """For each rank and migration number: how the rank's process ended."""
        self.now_s = 0.0

    @property
    def is_on(self) -> bool:
        return self._limit > 0 and self.is_possible()

    @property
    def spent(self) -> str:
        """Why no process is started for some rank now, if it is lost; empty if one is for all."""
        spent = [rank for rank in self._started_s if self.is_on and self._recent(rank, self.now_s) >= self._limit]
        return f"{self._option} {self._limit} is used up for rank {', '.join(map(str, sorted(spent)))}" if spent else ""

    def lost(self, rank: int, migration: int) -> None:
        """Take note of a loss. To be called once the rank's journals are there."""
        self._losses[rank][migration] = max(self._job.journal(rank).boundaries, default=-1)
        self._ends[rank].setdefault(migration, _end_of(self._job.holder(rank)))
        for kept in (self._losses[rank], self._ends[rank]):
            for number in list(kept)[:-LOSSES_KEPT]:
                del kept[number]

    def losses_at_step(self, rank: int) -> int:
        """Return how often the rank has been lost at the step where it was lost last."""
        boundaries = list(self._losses.get(rank, {}).values())
        return boundaries.count(boundaries[-1]) if boundaries else 1

    def comes_again(self, rank: int) -> str:
        """Return why no process takes over the rank any more, or empty."""
        at = self.boundary(rank)
        ends = self._ends[rank]
        story = [ends[number] for number, boundary in self._losses[rank].items() if boundary == at and number in ends]
        return comes_again(rank, at, self.losses_at_step(rank), story)

    def process_for(self, rank: int, now_s: float) -> m.SpareChosen | m.NoSpare:
        """Return the process that was started for the rank, or why there is none (yet). Ask for one if that is allowed."""
        if (started := self._started_for(rank)) is not None:
            return started
        where = self.place(rank)
        verdict = may_respawn(self._place(rank, where, now_s))
        if verdict.may:
            self._starting[rank] = where.in_place_of
            self.count(rank, now_s)
            self._outbox.to_agent(where.node, StartWorker(rank, where.in_place_of))
            count = self._recent(rank, now_s)
            self._outbox.emit(ProcessRespawned(rank, where.node, self.boundary(rank), count, self._limit))
        return m.NoSpare(rank, verdict.reason, soon=verdict.may)

    def process_to_enter(self, rank: int) -> m.SpareChosen | m.NoSpare:
        """Return the process for a rank that enters from a checkpoint and whose machine is missing, or why there is none (yet).

        One is asked for once, whatever the limit is.
        """
        if (started := self._started_for(rank)) is not None:
            return started
        where = choose_machine(rank, self._machines_for(rank))
        if rank in self._entering or not where.node:
            why = "the process that was started for it is gone" if rank in self._entering else where.reason
            return m.NoSpare(rank, f"no process is started for rank {rank}: {why}")
        self._entering.add(rank)
        self._starting[rank] = where.in_place_of
        self._outbox.to_agent(where.node, StartWorker(rank, where.in_place_of))
        return m.NoSpare(rank, f"rank {rank} waits for a process that is started {where.reason}", soon=True)

    def _started_for(self, rank: int) -> m.SpareChosen | m.NoSpare | None:
        """Return the process that was started for the rank, or NoSpare while it is to come.

        None: there is none, and none is asked for.
        """
        job = self._job
        if (found := next((w for w in job.spares if w.started_for == rank), None)) is not None and found.warm:
            job.workers[found.worker].rank = rank
            self._starting.pop(rank, None)
            reason = f"{found.worker} was started for rank {rank} on {found.node}, and takes over"
            return m.SpareChosen(rank, found.worker, reason)
        if found is not None or rank in self._starting:
            return m.NoSpare(rank, f"rank {rank} waits for the process that is started for it", soon=True)
        return None

    def may_in_its_place(self, rank: int, now_s: float) -> Respawn:
        return may_respawn(self._place(rank, self.own_place(rank), now_s))

    def machines_with_places(self, to_enter: bool = False) -> list[MachineWithPlaces]:
        """Return the machines on which processes would be started now for ranks of other machines.

        `to_enter`: as `process_to_enter` does.
        """
        may = to_enter or (self.is_on and not self.spent)
        return [m for m in self.machines() if not lacks(m)] if may else []

    def count(self, rank: int, now_s: float) -> None:
        """Count that a process is started in the rank's place, by this job's agents or by others."""
        self._started_s[rank] = [s for s in self._started_s[rank] if now_s - s < HOUR_S] + [now_s]

    def number(self, rank: int, now_s: float) -> str:
        """Return in words which start of a process the next one is."""
        return f"{self._recent(rank, now_s) + 1} of {self._limit} within the hour"

    def boundary(self, rank: int) -> int:
        """Return the boundary where the rank was lost last; -1 if that is not known."""
        return next(reversed(self._losses[rank].values()), -1)

    def recall(self, rank: int, boundary: int, started_s: float | None) -> None:
        """Take in a loss before this controller, or these processes. `started_s`: when a process was started in its place then."""
        self._losses[rank][-1 - len(self._losses[rank])] = boundary
        if started_s is not None:
            self._started_s[rank].append(started_s)

    def recall_starts(self, started: Iterable[str], ago_s: float) -> None:
        """Take in starts before this controller. `started`: as in ControllerConfig.respawned.

        `ago_s`: what takes the time of day to this clock.
        """
        for rank, at_s in (text.split(" ") for text in started):
            self._started_s[int(rank)].append(float(at_s) + ago_s)

    def own_place(self, rank: int, taken: Collection[str] = ()) -> Elsewhere:
        """Return the place that the rank had, whatever is `taken`; `node` is empty if nothing must be started there."""
        leaver = self._job.holder(rank)
        unusable = self._job.unusable(leaver)
        return Elsewhere("" if unusable else leaver.node, leaver.worker, unusable)

    def lacks_a_place(self, rank: int) -> bool:
        """Return whether nothing but a place is missing for a process for the rank."""
        is_coming = rank in self._starting or any(w.started_for == rank for w in self._job.spares)
        return not is_coming and self._recent(rank, self.now_s) < self._limit and not self.place(rank).node

    def place(self, rank: int, taken: Collection[str] = ()) -> Elsewhere:
        """Return the place that the rank had, if that is well, else one elsewhere that is not `taken`.

        `node` is empty if there is none.
        """
        leaver = self._job.holder(rank)
        own = self.own_place(rank)
        if own.node:
            return own
        machines = self._machines_for(rank, taken)
        found = choose_machine(rank, [m for m in machines if m.node != leaver.node or m.places])
        why = "its machine is lost" if self._job.is_lost_with_node(leaver.worker) else own.reason
        return found if found.node else Elsewhere("", "", f"{why}, and {found.reason}")

    def _machines_for(self, rank: int, taken: Collection[str] = ()) -> list[MachineWithPlaces]:
        other_files = "files that the script imports are others there"
        return [
            m if m.unusable or self._job.may_go_on(rank, m.node) else replace(m, unusable=other_files)
            for m in self.machines(taken)
        ]

    def machines(self, taken: Collection[str] = ()) -> list[MachineWithPlaces]:
        """Return all machines of the job, with the places that processes have left there. `taken`: places that are given away."""
        job = self._job
        there = self._job.by_node()
        vacated: dict[str, list[str]] = defaultdict(list)
        asked = {*self._starting.values(), *self.asked_for_spares(), *taken}
        for worker in job.vacated(asked):
            if not job.unusable(worker):
                vacated[worker.node].append(worker.worker)
        return [
            MachineWithPlaces(
                node.node,
                job.unusable_machine(node),
                tuple(vacated[node.node]),
                any(d.endswith(DRIVER) for w in there.get(node.node, ()) for d in w.devices),
                sum(w.alive and w.rank != NO_RANK for w in there.get(node.node, ())),
                job.free_gpus(node, asked),
            )
            for node in job.nodes.values()
        ]

    def _place(self, rank: int, where: Elsewhere, now_s: float) -> LostPlace:
        unusable = "" if where.node else where.reason
        there = where.reason if where.node else ""
        return LostPlace(rank, unusable, self._recent(rank, now_s), self._limit, self._option, there)

    def _recent(self, rank: int, now_s: float) -> int:
        return sum(now_s - started_s < HOUR_S for started_s in self._started_s.get(rank, ()))

    def over(self, rank: int) -> None:
        """Take note that the process for the rank could not be started, or is gone."""
        self._starting.pop(rank, None)


def _end_of(worker: Worker) -> str:
    exited = worker.exited
    if exited is None or exited.fenced:
        return f"{worker.worker} was ended"
    return f"{worker.worker} {how_ended(exited.signal, exited.exit_code)}"
