"""Carries out what people ask of a running job: to move a rank, to save, to bar a device, to have more spares, to end."""

from __future__ import annotations

import signal
from collections.abc import Callable

from torchrelay.controller.coverage.judge import ProtectionJudge
from torchrelay.controller.ending import Ending
from torchrelay.controller.execution.planned_moves import PlannedMoves
from torchrelay.controller.health.health_controller import HealthController
from torchrelay.controller.outbox import Outbox
from torchrelay.controller.processes.exits import Exits
from torchrelay.controller.spares.pool import SparePool
from torchrelay.protocol.events import SparesAsked
from torchrelay.protocol.messages import (
    AddSparesReply,
    AddSparesRequest,
    CheckpointRequest,
    ClearReply,
    ClearRequest,
    MigrateReply,
    MigrateRequest,
    QuarantineReply,
    QuarantineRequest,
)


class UserRequests:
    """The requests to one job. `settle(now_s)` is called after a request that has changed something."""

    def __init__(
        self,
        outbox: Outbox,
        ending: Ending,
        exits: Exits,
        planned_moves: PlannedMoves,
        judge: ProtectionJudge,
        health: HealthController,
        pool: SparePool,
        settle: Callable[[float], None],
    ) -> None:
        self._outbox = outbox
        self._ending = ending
        self._exits = exits
        self._planned_moves = planned_moves
        self._judge = judge
        self._health = health
        self._pool = pool
        self._settle = settle

    def migrate(self, request: MigrateRequest, now_s: float) -> MigrateReply:
        """Move a rank to a spare now, or say why not."""
        if refusal := self._refusal():
            return MigrateReply(False, "", refusal)
        return self._planned_moves.migrate(request.rank, request.reason, now_s, request.by)

    def want(self, rank: int, reason: str, now_s: float) -> None:
        """Ask for a planned move that no one waits for: it begins when it can."""
        if not self._ending.is_still and not self._exits.is_failing:
            self._planned_moves.want(rank, reason, now_s, lasts=True)

    def save(self, request: CheckpointRequest, now_s: float) -> MigrateReply:
        """Have all ranks save a checkpoint now, and go on."""
        if refusal := self._refusal():
            return MigrateReply(False, "", refusal)
        no_room = self._judge.known().checkpoint_lacks
        return self._planned_moves.save(request.reason, no_room, now_s, request.by)

    def quarantine(self, request: QuarantineRequest, now_s: float) -> QuarantineReply:
        """Give no rank to a device or a node any more: its ranks move."""
        if refusal := self._refusal():
            return QuarantineReply(False, refusal)
        reply = self._health.quarantine(request, now_s)
        self._settle(now_s)
        return reply

    def clear(self, request: ClearRequest) -> ClearReply:
        """End a quarantine, or have the device checked."""
        return self._health.clear(request)

    def add_spares(self, request: AddSparesRequest, now_s: float) -> AddSparesReply:
        """Have more spares."""
        if (aside := self._ending.aside) is not None:
            return AddSparesReply(False, aside.reason)
        if at_end := "the job is ending" if self._ending.is_over else self._exits.why_ending():
            return AddSparesReply(False, at_end, self._pool.wanted)
        reply = self._pool.add(request.count, request.node)
        if reply.accepted:
            self._outbox.emit(SparesAsked(request.count, request.node, reply.wanted, request.by))
        self._settle(now_s)
        return reply

    def stop(self, signal_number: int, by: str = "") -> None:
        """End the job, as the user asks: at its command, or by a request, which `by` says. `signal_number`: 0 means SIGTERM."""
        number = signal_number or signal.SIGTERM
        self._ending.end_job(128 + number, f"stopped by {signal.Signals(number).name}", number, by)

    def _refusal(self) -> str:
        """Return why no request is carried out any more, or empty."""
        if self._ending.aside is not None:
            return self._ending.aside.reason
        return "the job is ending" if self._ending.is_over or self._exits.is_failing else ""
