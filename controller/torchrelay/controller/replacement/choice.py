"""Chooses which process takes over a lost rank, or says why none does."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from torchrelay.controller.checkpoints.rollback import Rollback
from torchrelay.controller.config import ControllerConfig
from torchrelay.controller.decide.protection.lost_together import lost_together
from torchrelay.controller.decide.replacement.joins import barred_nodes, first_reason, futile
from torchrelay.controller.decide.replacement.spares import ChosenSpare, SpareState, choose_spare
from torchrelay.controller.decide.replacement.spread import depends_on
from torchrelay.controller.migration import events as m
from torchrelay.controller.outbox import Outbox
from torchrelay.controller.picture.job import Job
from torchrelay.controller.picture.worker import Worker
from torchrelay.controller.replacement.respawns import Respawns
from torchrelay.controller.replacement.started_again import StartedAgain
from torchrelay.protocol.names import NO_RANK
from torchrelay.protocol.words.phases import PLANNED, RESUME, ROLLBACK, UNPLANNED


@dataclass(frozen=True)
class RefusedTakeover:
    """Why no spare takes over a rank, and why no process in its place, if none does. `is_final`: waiting is of no use."""

    spare: str
    in_place: str
    is_final: bool


class SpareChoice:
    def __init__(self, config: ControllerConfig, job: Job, outbox: Outbox, rollback: Rollback) -> None:
        self._config = config
        self._job = job
        self._rollback = rollback
        self.respawns = Respawns(config.respawn_limit, job, outbox, config.respawn_option)
        again = StartedAgain(config.respawn_barred, job, self.respawns)
        self._again = again if config.adopted else None
        rollback.place_for = self.respawns.own_place if config.adopted else self.respawns.place
        if config.adopted:
            self.respawns.is_possible = again.is_everywhere
        self.hurry: Callable[[], None] = lambda: None
        """Called when ranks wait for a spare that is still importing."""
        self.end_stopped: Callable[[int], bool] = lambda rank: False
        """Called when a rank has no place: ends spares that are stopped. Returns whether a place of theirs is to come."""
        self._migration = -1
        self.away: int = NO_RANK
        """The rank whose planned move is of use only to another machine."""
        self.refused: dict[int, RefusedTakeover] = {}
        """Why each rank was not taken over by a spare, in the latest migration."""

    def choose(self, kind: str, rank: int, migration: int, now_s: float) -> m.SpareChosen | m.NoSpare:
        """Choose a process for the rank. The chosen one is no spare from here on.

        `kind`: of the migration, the job's `migration`th.
        """
        if migration != self._migration:
            self._migration = migration
            self.refused.clear()
            if self._again is not None:
                self._again.new_migration()
        if kind == UNPLANNED:
            self.respawns.lost(rank, migration)
        answer = self._choose(kind, rank, now_s)
        if isinstance(answer, m.NoSpare) and not answer.soon and rank not in self.refused:
            self.refused[rank] = RefusedTakeover(answer.reason, answer.reason, True)
        return answer

    def _choose(self, kind: str, rank: int, now_s: float) -> m.SpareChosen | m.NoSpare:
        job = self._job
        if kind == ROLLBACK and (found := self._rollback.process_for(rank)) is not None:
            return found
        if kind == UNPLANNED and not job.journal(rank).set_up:
            # A spare would be used up to find that out, and the next one too.
            return m.NoSpare(
                rank, f"no spare can take over rank {rank}: its journals are lost with it, and nobody has copies"
            )
        nodes = {spare.node for spare in self._spares_for(rank)}
        if why := futile(rank, job.join_failures, nodes, job.rehearsals.judged.get(rank)):
            return m.NoSpare(rank, f"no spare is spent on rank {rank}: {why}")
        if kind == UNPLANNED and (why := self.respawns.comes_again(rank)):
            return m.NoSpare(rank, why)  # new spares are made without end
        choice = self._choice(kind, rank)
        if choice.soon:
            self.hurry()
        if choice.worker:
            if self._again is not None:
                self._again.goes_elsewhere(rank)
            job.workers[choice.worker].rank = rank
            return m.SpareChosen(rank, choice.worker, choice.reason)
        if kind == UNPLANNED and (self._again is not None or (self.respawns.is_on and not choice.soon)):
            return self._in_its_place(rank, choice, now_s)
        if kind == ROLLBACK and not choice.soon and (found := self._rollback.process_without_spare(rank)) is not None:
            return found
        if kind == RESUME and self._enters_elsewhere() and not choice.soon:
            return self.respawns.process_to_enter(rank)
        met = "" if choice.soon else first_reason(rank, job.join_failures)
        return m.NoSpare(rank, f"{choice.reason}{met}", choice.soon)

    def _choice(self, kind: str, rank: int) -> ChosenSpare:
        """Choose one of the spares.

        When ranks are lost, a process in its own place, or one that another rank waits for, is no spare.
        """
        job = self._job
        again = self._again if kind == UNPLANNED else None
        if kind == UNPLANNED and self._config.spares_barred:
            return ChosenSpare("", self._config.spares_barred)
        to_come = job.spares_to_come(rank) - (again is not None and again.is_to_come(rank))
        kept = {w.worker for w in job.spares if again is not None and again.is_kept(w, rank)}
        barred = barred_nodes(rank, job.join_failures)
        spares = [s for s in self._spares_for(rank) if s.worker not in kept and s.node not in barred]
        if not spares and not to_come and any(w.warm and not job.may_go_on(rank, w.node) for w in job.spares):
            return ChosenSpare("", f"no spare is left for rank {rank} where the script imports the same files")
        if kind == PLANNED and rank == self.away:
            spares = [s for s in spares if not s.together]
            to_come = 0
        return choose_spare(spares, rank, job.home_of(rank), to_come)

    def _enters_elsewhere(self) -> bool:
        """Return whether a machine of the job is missing, so that others have its ranks."""
        return not self._config.adopted and len(self._job.nodes) < self._config.nnodes

    def _in_its_place(self, rank: int, no_spare: ChosenSpare, now_s: float) -> m.SpareChosen | m.NoSpare:
        answer = (self._again or self.respawns).process_for(rank, now_s)
        if self._again is None and self.respawns.lacks_a_place(rank) and self.end_stopped(rank):
            answer = m.NoSpare(
                rank, f"rank {rank} waits for the place of a spare that is stopped, and is ended", soon=True
            )
        if isinstance(answer, m.SpareChosen):
            self.refused[rank] = RefusedTakeover(no_spare.reason, "", True)
            return answer
        soon = answer.soon or no_spare.soon
        in_place = "the process that is started again in its place was not ready in time"
        self.refused[rank] = RefusedTakeover(no_spare.reason, in_place if answer.soon else answer.reason, not soon)
        if soon:
            waits = [part.reason for part in (no_spare, answer) if part.soon]
            return m.NoSpare(rank, "; ".join(waits), soon=True)
        met = first_reason(rank, self._job.join_failures)
        return m.NoSpare(rank, f"{no_spare.reason}, and {answer.reason}{met}")

    def _spares_for(self, rank: int) -> list[SpareState]:
        """Return the spares for the rank.

        Pods are where their cluster wants them: there it does not count where the other ranks are.
        """
        job = self._job
        spares = [w for w in job.spares_for(rank) if w.started_for == NO_RANK]
        if self._config.adopted or len(job.nodes) < 2:
            return [self._as_spare(w) for w in spares]
        place = lost_together(job.nodes, job.machines).of
        there = {w.rank: place[w.node] for w in job.rank_workers if not job.is_lost_with_node(w.worker)}
        crowded = depends_on(rank, job.checks, there)
        return [self._as_spare(w, place[w.node] == crowded) for w in spares]

    def if_lost_now(self, rank: int) -> str | None:
        """Return the spare that would take over the rank if it were lost now, or None."""
        home = self._job.home_of(rank)
        return choose_spare(self._spares_for(rank), rank, home).worker or None

    def _as_spare(self, w: Worker, together: bool = False) -> SpareState:
        job = self._job
        others = [o for o in job.workers.values() if o.node == w.node and o.alive and o.rank != NO_RANK]
        company = len(others) if job.local_world_size > 1 else 0
        stopped = w.stopped_since_s is not None or job.is_away(w)
        doubtful = job.nodes[w.node].links_down
        return SpareState(w.worker, w.node, w.warm, stopped, job.quarantined(w), company, doubtful, together)
