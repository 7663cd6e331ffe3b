"""Which process takes over a lost rank, or why none does."""

from __future__ import annotations

from torchrelay.controller.config import ControllerConfig
from torchrelay.controller.decide.joins import first_reason, futile
from torchrelay.controller.decide.spares import Spare, choose_spare
from torchrelay.controller.job import Job, Worker
from torchrelay.controller.outbox import Outbox
from torchrelay.controller.respawns import Respawns
from torchrelay.controller.rollback import Rollback
from torchrelay.protocol import migration_events as m
from torchrelay.protocol.names import NO_RANK
from torchrelay.protocol.phases import ROLLBACK, UNPLANNED


class SpareChoice:
    def __init__(self, config: ControllerConfig, job: Job, outbox: Outbox, rollback: Rollback) -> None:
        self._config, self._job, self._rollback = config, job, rollback
        self.respawns = Respawns(0 if config.adopted else config.respawn_limit, job, outbox)

    def choose(self, kind: str, rank: int, migration: int, now_s: float) -> m.SpareChosen | m.NoSpare:
        """`kind`: of the migration, the job's `migration`th. Whoever is chosen is no spare from here on."""
        job = self._job
        if kind == UNPLANNED:
            self.respawns.lost(rank, migration)
        if kind == ROLLBACK and (found := self._rollback.process_for(rank)) is not None:
            return found
        spares = self._spares_for(rank)
        if barred := self._config.spares_barred if kind == UNPLANNED else "":
            return m.NoSpare(rank, barred)
        if kind == UNPLANNED and not job.journal(rank).set_up:
            # A spare would be used up to find that out, and the next one too.
            return m.NoSpare(
                rank, f"no spare can take over rank {rank}: its journals are lost with it, and nobody has copies"
            )
        if why := futile(rank, job.join_failures, job.rehearsals.judged.get(rank)):
            return m.NoSpare(rank, f"no spare is spent on rank {rank}: {why}")
        choice = choose_spare(spares, rank, job.home_of(rank, self._config.nproc_per_node), job.spares_to_come(rank))
        if not choice.worker:
            if kind == UNPLANNED and not choice.soon and self.respawns.is_on:
                return self._in_its_place(rank, choice.reason, now_s)
            met = "" if choice.soon else first_reason(rank, job.join_failures)
            return m.NoSpare(rank, f"{choice.reason}{met}", choice.soon)
        job.workers[choice.worker].rank = rank
        return m.SpareChosen(rank, choice.worker, choice.reason)

    def _in_its_place(self, rank: int, no_spare: str, now_s: float) -> m.SpareChosen | m.NoSpare:
        answer = self.respawns.process_for(rank, now_s)
        if isinstance(answer, m.SpareChosen) or answer.soon:
            return answer
        return m.NoSpare(rank, f"{no_spare}, and {answer.reason}{first_reason(rank, self._job.join_failures)}")

    def _spares_for(self, rank: int) -> list[Spare]:
        return [self._as_spare(w) for w in self._job.spares_for(rank) if w.started_for == NO_RANK]

    def if_lost_now(self, rank: int) -> str | None:
        """The one that would take over the rank if it were lost now."""
        home = self._job.home_of(rank, self._config.nproc_per_node)
        return choose_spare(self._spares_for(rank), rank, home).worker or None

    def _as_spare(self, w: Worker) -> Spare:
        job = self._job
        others = [o for o in job.workers.values() if o.node == w.node and o.alive and o.rank != NO_RANK]
        company = len(others) if job.local_world_size > 1 else 0
        stopped = w.stopped_since_s is not None or job.is_away(w)
        return Spare(w.worker, w.node, w.warm, stopped, job.quarantined(w), company, job.nodes[w.node].links_down)
