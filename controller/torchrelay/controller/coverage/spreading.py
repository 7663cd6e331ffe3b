"""Moves ranks to a machine that is back, one after the other, where all would be lost with another one: in a calm moment."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass

from torchrelay.controller.config import ControllerConfig
from torchrelay.controller.coverage.judge import ProtectionJudge
from torchrelay.controller.decide.replacement.spread import (
    MoveAway,
    ReadySpares,
    StayThere,
    pause_s,
    recent,
    spent,
    spread,
)
from torchrelay.controller.execution.driver import Driver
from torchrelay.controller.execution.planned_moves import PlannedMoves
from torchrelay.controller.outbox import Outbox
from torchrelay.controller.picture.job import Job
from torchrelay.controller.spares.pool import SparePool
from torchrelay.protocol.events import RankSpread
from torchrelay.protocol.names import NO_RANK
from torchrelay.protocol.words.causes import MigrationCause
from torchrelay.protocol.words.level import Level

LOOK_EVERY_S = 2.0
LOOK_S_PER_RANK = 0.05
"""Each look costs in proportion to the job's size: a third of a second with 1,000 ranks."""


@dataclass(frozen=True)
class _Begun:
    """`holder`: who had the rank before; `machine`: where."""

    rank: int
    holder: str
    machine: str


class Spreading:
    """`is_rehearsing()`: whether a move would break a rehearsal off; `is_ending()`: why no move is of use any more, or empty."""

    def __init__(
        self,
        config: ControllerConfig,
        job: Job,
        outbox: Outbox,
        driver: Driver,
        planned_moves: PlannedMoves,
        judge: ProtectionJudge,
        pool: SparePool,
        is_rehearsing: Callable[[], bool],
        is_ending: Callable[[], str],
    ) -> None:
        self._config = config
        self._job = job
        self._outbox = outbox
        self._driver = driver
        self._planned_moves = planned_moves
        self._judge = judge
        self._pool = pool
        self._is_rehearsing = is_rehearsing
        self._is_ending = is_ending
        # Pods are where their cluster wants them; a check moves nothing, and without replacement a loss ends the job anyway.
        self._is_on = not (config.adopted or config.check_steps or config.spares_barred or config.nnodes < 2)
        self._calm_since_s: float | None = None
        self._migrations = driver.count
        """How many had begun at the last look: one may have begun and ended since."""
        self._looked_s = float("-inf")
        self._begun: _Begun | None = None
        self._in_vain_s: list[float] = []
        self.moves = 0
        self.reason = ""
        """What is to come, or why nothing does; empty where no move would be of use."""

    def tick(self, now_s: float) -> None:
        if not self._is_on or now_s - self._looked_s < LOOK_EVERY_S + LOOK_S_PER_RANK * self._job.world_size:
            return
        self._looked_s = now_s
        if self._driver.count != self._migrations:
            self._migrations = self._driver.count
            self._calm_since_s = None
        if self._driver.migration is not None or self._planned_moves.is_waiting:
            return
        self._note_end(now_s)
        level = self._judge.promised()[0].level
        of_use = (
            level == Level.PARTLY
            and not self._job.imports_differ
            and not self._is_ending()
            and not self._job.unprotected_because(planned=True)
        )
        found = spread(self._judge.known(), self._spares()) if of_use else StayThere()
        if isinstance(found, StayThere):
            self.reason = found.reason
            self._calm_since_s = None
            return
        if why := spent(self._in_vain_s, now_s):
            self.reason = f"{why}; {found.why}"
            return
        if self._calm_since_s is None:
            self._calm_since_s = now_s
        calm_s = self._config.policy.spread_calm_s
        left_s = pause_s(calm_s, self._driver.outcomes.latest_move_s, self._in_vain_s, now_s) - (
            now_s - self._calm_since_s
        )
        self.reason = (
            f"rank {found.rank} is to move {found.reason}; in {max(left_s, 0.0):.0f} s, if all is calm until then"
        )
        if left_s <= 0 and not self._is_rehearsing():
            self._move(found, now_s)

    def _move(self, move: MoveAway, now_s: float) -> None:
        holder = self._job.holder(move.rank)
        self._begun = _Begun(move.rank, holder.worker, holder.node)
        self._calm_since_s = None
        self.reason = ""
        self._driver.spares.away = move.rank
        self._planned_moves.want(move.rank, move.reason, now_s, cause=MigrationCause.SPREAD)

    def _note_end(self, now_s: float) -> None:
        """Of the move that was begun last."""
        begun = self._begun
        self._begun = None
        if begun is None:
            return
        self._driver.spares.away = NO_RANK
        holder = self._job.holder(begun.rank)
        if holder.node == begun.machine:
            self._in_vain_s = [*recent(self._in_vain_s, now_s), now_s]
            return
        self.moves += 1
        self._outbox.emit(RankSpread(begun.rank, holder.node, self.moves))

    def _spares(self) -> ReadySpares:
        job = self._job
        ready = Counter(
            w.node
            for w in job.spares
            if w.warm
            and w.stopped_since_s is None
            and not (job.quarantined(w) or job.is_away(w) or job.nodes[w.node].links_down)
        )
        machines = {n.node_rank: n.node for n in job.nodes.values() if not n.lost}
        each = self._config.nproc_per_node
        homes = {rank: machines[rank // each] for rank in job.holders if rank // each in machines}
        return ReadySpares(ready, self._pool.is_on, homes)
