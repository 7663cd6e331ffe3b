"""The transition table: phase x event -> handler, the phases it may lead to, and what a passed deadline does.

docs/protocol.md is drawn from this by scripts/draw_protocol.py.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from torchrelay.controller.migration import deadlines as late
from torchrelay.controller.migration import events, saving
from torchrelay.controller.migration import handlers as do
from torchrelay.protocol import messages
from torchrelay.protocol.words.phases import Phase

H = Phase.HEALTHY
SU = Phase.SUSPECTED
FE = Phase.FENCING
PR = Phase.PREPARING
QU = Phase.QUIESCING
TR = Phase.TRANSFERRING
RE = Phase.REBUILDING
VE = Phase.VERIFYING
CO = Phase.COMMITTED
CH = Phase.CHECKPOINTING
AB = Phase.ABANDONED


@dataclass(frozen=True)
class Transition:
    handler: Callable[[Any, Any], None]
    leads_to: tuple[Phase, ...] = ()
    """Phases that the handler itself may enter; none if it only takes note."""


@dataclass(frozen=True)
class TableRow:
    """`on_arrival`: phases that are entered at once when this one turns out to be complete on arrival."""

    on: dict[type, Transition] = field(default_factory=dict)
    late: Callable[[Any], None] | None = None
    late_leads_to: tuple[Phase, ...] = ()
    late_means: str = ""
    on_arrival: tuple[Phase, ...] = ()


_LOSSES = {
    events.RankLost: Transition(do.lost, (FE, AB)),
    messages.OrderFailed: Transition(do.order_failed, (FE, AB)),
}

TABLE: dict[Phase, TableRow] = {
    H: TableRow(
        {
            events.SuspicionRaised: Transition(do.suspect, (SU,)),
            events.RankLost: Transition(do.first_loss, (FE,)),
            events.MoveRequested: Transition(do.move, (PR,)),
            events.ResumeRequested: Transition(do.resume, (PR,)),
            events.SaveRequested: Transition(do.save, (QU,)),
            events.Diverged: Transition(do.diverged, (FE,)),
        }
    ),
    SU: TableRow(
        {
            events.SuspicionCleared: Transition(do.clear, (H,)),
            events.RankFinished: Transition(do.clear, (H,)),
            events.RankLost: Transition(do.first_loss, (FE,)),
        },
        late.suspected_late,
        (FE,),
        "the suspicion stands: the rank is lost",
    ),
    FE: TableRow(
        {
            **_LOSSES,
            events.WorkerGone: Transition(do.worker_gone, (PR, CO)),
            events.JournalRead: Transition(do.journal_read, (PR,)),
            events.RankFinished: Transition(do.finished),
            messages.Prepared: Transition(do.prepared),
            messages.Standing: Transition(do.standing),
        },
        late.fencing_late,
        (AB,),
        "the job ends: a rank must not have two holders, nor lose its journal",
        on_arrival=(PR, CO),
    ),
    PR: TableRow(
        {
            **_LOSSES,
            events.JournalRead: Transition(do.journal_read),
            events.SpareChosen: Transition(do.spare_chosen),
            events.NoSpare: Transition(do.no_spare, (QU, AB)),
            events.SpareWarm: Transition(do.spare_warm),
            events.WorkerGone: Transition(do.worker_gone),
            events.RankFinished: Transition(do.finished, (AB,)),
            messages.Prepared: Transition(do.prepared, (QU,)),
            messages.Standing: Transition(do.standing),
        },
        late.preparing_late,
        (FE, QU, AB),
        "unplanned: the joiner is lost, the next spare is due; without one, a checkpoint. Planned: abandoned",
        on_arrival=(QU,),
    ),
    QU: TableRow(
        {
            **_LOSSES,
            events.BoundaryChosen: Transition(do.boundary_chosen),
            events.JournalRead: Transition(do.journal_read),
            events.TargetDecided: Transition(do.target_decided, (TR, CH)),
            events.GateToPass: Transition(do.gate_to_pass),
            events.TargetImpossible: Transition(do.impossible, (AB,)),
            events.RollBackDecided: Transition(do.roll_back, (FE,)),
            events.WorkerGone: Transition(do.worker_gone),
            events.RankFinished: Transition(do.finished, (AB,)),
            messages.QuiesceAnswer: Transition(do.quiesce_answer, (AB,)),
            messages.Standing: Transition(do.standing, (AB,)),
        },
        late.quiescing_late,
        (FE, AB),
        "unplanned: who does not stand is lost too. Planned or a save: abandoned",
    ),
    TR: TableRow(
        {
            **_LOSSES,
            events.WorkerGone: Transition(do.worker_gone),
            events.RankFinished: Transition(do.finished),
            messages.Serving: Transition(do.serving),
            messages.Transferred: Transition(do.transferred, (RE, CO)),
        },
        late.transferring_late,
        (FE, AB),
        "unplanned: the donor that does not serve, else the joiner, is lost. Planned: abandoned",
    ),
    RE: TableRow(
        {
            **_LOSSES,
            events.WorkerGone: Transition(do.worker_gone),
            events.RankFinished: Transition(do.finished),
            events.Diverged: Transition(do.diverged, (FE, AB)),
            messages.Rebuilt: Transition(do.rebuilt, (VE,)),
            messages.Verified: Transition(do.verified),
        },
        late.rebuilding_late,
        (FE, AB),
        "unplanned: who is missing is lost, a joiner first. Planned: abandoned",
    ),
    VE: TableRow(
        {
            **_LOSSES,
            events.WorkerGone: Transition(do.worker_gone),
            events.RankFinished: Transition(do.finished),
            events.Diverged: Transition(do.diverged, (FE, AB)),
            messages.Verified: Transition(do.verified, (CO, FE)),
        },
        late.verifying_late,
        (FE, AB),
        "unplanned: who is missing is lost, a joiner first. Planned: abandoned",
        on_arrival=(CO, FE),
    ),
    CO: TableRow(
        {
            events.RankLost: Transition(do.lost_after_commit, (H,)),
            messages.OrderFailed: Transition(do.order_failed_after_commit, (H,)),
            events.RankFinished: Transition(do.finished, (H,)),
            messages.Resumed: Transition(do.resumed, (H,)),
            messages.FirstStep: Transition(do.stepped, (H,)),
        },
        late.committed_late,
        (H,),
        "the migration stays committed; ranks that do not move are for the hang watch",
        on_arrival=(H,),
    ),
    CH: TableRow(
        {
            events.RankLost: Transition(saving.lost_while_saving, (FE,)),
            messages.OrderFailed: Transition(saving.order_failed_while_saving, (FE, AB)),
            events.JournalRead: Transition(do.journal_read),
            events.WorkerGone: Transition(do.worker_gone),
            events.RankFinished: Transition(do.finished),
            events.CheckpointWritten: Transition(saving.checkpoint_written, (H,)),
            events.CheckpointFailed: Transition(saving.checkpoint_failed, (AB,)),
            events.FolderChosen: Transition(saving.folder_chosen, (FE,)),
            events.RollBackDecided: Transition(do.roll_back, (FE,)),
            messages.CheckpointSaved: Transition(saving.saved),
        },
        late.checkpointing_late,
        (AB,),
        "the job ends without a checkpoint. A save: it goes on without one",
    ),
    AB: TableRow(),
}
