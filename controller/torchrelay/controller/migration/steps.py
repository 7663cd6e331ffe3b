"""What a migration does on arriving in a phase, and when a phase is complete."""

from __future__ import annotations

from collections.abc import Callable

from torchrelay.controller.migration.events import (
    ChooseBoundary,
    ChooseFolder,
    ChooseSpare,
    DecideTarget,
    FenceWorker,
    RankMoved,
    ReadJournal,
    WriteCheckpoint,
)
from torchrelay.controller.migration.state import State
from torchrelay.controller.migration.turn import Turn, finish_committed
from torchrelay.protocol.journals import collective_logs
from torchrelay.protocol.messages import Commit, Plan, Rebuild, SaveCheckpoint, Serve
from torchrelay.protocol.words.phases import ALL_ENTER, PLANNED, UNFORCED, Phase
from torchrelay.protocol.words.positions import JoinerAction, SurvivorAction


def arrive_fencing(turn: Turn) -> None:
    s = turn.state
    if s.kind == PLANNED:
        for worker in s.lost.values():
            s.fencing.add(worker)
            turn.do(FenceWorker(worker, f"rank {s.rank} lives elsewhere now"))
    advance_fencing(turn)


def advance_fencing(turn: Turn) -> None:
    s = turn.state
    if s.fencing:
        return
    if s.kind == PLANNED:
        turn.enter(Phase.COMMITTED)
    elif s.journals.issuperset(s.lost):
        turn.enter(Phase.PREPARING)


def choose_spares(turn: Turn) -> None:
    s = turn.state
    for rank in sorted(s.lost):
        if rank not in s.joiners and not s.no_spare and (rank in s.journals or s.kind in ALL_ENTER):
            turn.do(ChooseSpare(rank))


def arrive_preparing(turn: Turn) -> None:
    s = turn.state
    if s.kind == PLANNED:
        # The recording of the rank's set-up is in its journal; the joiner needs it from the start.
        for rank, worker in s.lost.items():
            turn.do(ReadJournal(rank, worker))
    choose_spares(turn)
    advance_preparing(turn)


def advance_preparing(turn: Turn) -> None:
    s = turn.state
    if s.no_spare or all(rank in s.joiners and s.joiners[rank].prepared for rank in s.lost):
        turn.enter(Phase.QUIESCING)


def arrive_quiescing(turn: Turn) -> None:
    s = turn.state
    if s.kind in UNFORCED:
        s.stopped_since_s = None
        turn.do(ChooseBoundary(0))
    else:
        advance_quiescing(turn)


def advance_quiescing(turn: Turn) -> None:
    s = turn.state
    if s.asked:
        return
    if s.kind in UNFORCED and not (s.quiesce_agreed and s.standings.keys() >= s.holders.keys()):
        return
    if s.kind == PLANNED:
        s.asked = True
        for rank, worker in s.lost.items():
            turn.do(ReadJournal(rank, worker))
    elif s.has_survivors(s.standings):
        s.asked = True
        turn.do(DecideTarget(checkpoint=s.saves))


def arrive_transferring(turn: Turn) -> None:
    s = turn.state
    if s.kind in ALL_ENTER and not s.donors:
        send_plans(turn)
        return
    for rank, donor in sorted(s.donors.items()):
        goes_through = s.entries.get(rank) == JoinerAction.SHADOW
        host = s.serve_hosts.get(rank, "")
        serve = Serve(s.generation, s.target, s.tokens[rank], host, behind_update=goes_through)
        for giver in (donor, *s.helpers.get(rank, ())):
            s.unanswered_serves.setdefault(giver, []).append(rank)
            turn.order(giver, donor_worker(s, giver), serve)


def donor_worker(s: State, rank: int) -> str:
    """Who holds the rank; where all ranks enter, who joins as it, with the copies on its node."""
    return s.joiners[rank].worker if s.kind in ALL_ENTER else s.holders[rank]


def send_plans(turn: Turn) -> None:
    """Tells everybody how to get to the target. Survivors hear of it last, when the tensors can flow."""
    s = turn.state
    log = collective_logs.join(x.collective_log for _, x in sorted(s.standings.items()) if x.gates_passed == s.target)
    for rank, joiner in sorted(s.joiners.items()):
        host, port = s.serving.get(rank, ["", 0])
        donor = s.standings.get(s.donors.get(rank, -1))
        plan = Plan(
            s.generation,
            s.target,
            s.entries[rank],
            collective_log=log if s.entries[rank] == JoinerAction.SHADOW else b"",
            ddp_layout=donor.ddp_layout if donor else "",
            donor_host=host,
            donor_port=port,
            token=s.tokens.get(rank, ""),
            directory=s.directory,
            offline=s.offline,
            late=s.late.get(rank, {}) if s.entries[rank] == JoinerAction.SHADOW else {},
            donor_collectives=s.donor_collectives.get(rank, -1),
            place=next((t.place for t in s.standings.values() if t.boundary == s.target and t.place), ""),
            more_hosts=tuple(host for host, _ in s.helping.get(rank, ())),
            more_ports=tuple(port for _, port in s.helping.get(rank, ())),
            left=s.left if s.entries[rank] == JoinerAction.SHADOW else "",
            carried=tuple(s.carried.get(rank, ())),
            compared=s.compared.get(rank, -1),
            lacking=tuple(s.lacking.get(rank, ())),
        )
        turn.order(rank, joiner.worker, plan)
    for rank in s.survivors:
        action = s.actions[rank]
        plan = Plan(
            s.generation,
            s.target,
            action,
            collective_log=log if action == SurvivorAction.FORWARD else b"",
            offline=s.offline,
        )
        turn.order(rank, s.holders[rank], plan)
    if s.kind == PLANNED:
        for rank, worker in s.lost.items():
            turn.order(rank, worker, Plan(s.generation, s.target, SurvivorAction.LEAVE.value))


def advance_transferring(turn: Turn) -> None:
    s = turn.state
    if s.transferred.issuperset(s.joiners):
        turn.enter(Phase.COMMITTED if s.offline else Phase.REBUILDING)


def arrive_rebuilding(turn: Turn) -> None:
    s = turn.state
    if s.survivors:
        standing = s.standings[s.survivors[0]]
        host = standing.store_host
        port = standing.store_port
    else:
        joiner = s.joiners[min(s.joiners)]
        host = joiner.store_host
        port = joiner.store_port
    turn.order_members(Rebuild(s.generation, s.target, host, port))


def advance_rebuilding(turn: Turn) -> None:
    if turn.state.has_members(turn.state.rebuilt):
        turn.enter(Phase.VERIFYING)


def advance_verifying(turn: Turn) -> None:
    s = turn.state
    if s.has_members(s.verified):
        turn.enter(Phase.FENCING if s.kind == PLANNED else Phase.COMMITTED)


def arrive_committed(turn: Turn) -> None:
    s = turn.state
    s.moved = {rank: joiner.worker for rank, joiner in sorted(s.joiners.items())}
    s.holders.update(s.moved)
    s.lost.clear()
    s.joiners.clear()
    for rank, worker in s.moved.items():
        turn.do(RankMoved(rank, worker))
    turn.order_members(Commit(s.generation))
    if s.postponed:
        finish_committed(turn, "committed; another loss came meanwhile")


def advance_committed(turn: Turn) -> None:
    s = turn.state
    resumed = s.resumed | s.finished
    stepped = resumed if s.offline else s.stepped | s.finished
    if s.has_members(resumed) and s.has_members(stepped):
        finish_committed(turn, "every rank has done a step since")


def arrive_checkpointing(turn: Turn) -> None:
    s = turn.state
    order_saves(turn)
    for rank in s.survivors:
        turn.do(ReadJournal(rank, s.holders[rank]))


def order_saves(turn: Turn) -> None:
    """Into the folder that was chosen."""
    s = turn.state
    for rank in s.survivors:
        if rank not in s.departed:
            save = SaveCheckpoint(s.generation, s.directory, rank in s.savers, s.target)
            turn.order(rank, s.holders[rank], save)


def advance_checkpointing(turn: Turn) -> None:
    s = turn.state
    survivors = set(s.survivors)
    if s.asked or not s.saved | s.unsaved.keys() >= survivors:
        return  # nobody writes into the folder any more once all have answered
    if s.unsaved:
        s.asked = True
        turn.do(ChooseFolder(s.directory, "; ".join(dict.fromkeys(s.unsaved.values()))))
    elif s.journals >= survivors | set(s.lost):
        s.asked = True
        turn.do(WriteCheckpoint(s.directory))


ARRIVE: dict[Phase, Callable[[Turn], None]] = {
    Phase.FENCING: arrive_fencing,
    Phase.PREPARING: arrive_preparing,
    Phase.QUIESCING: arrive_quiescing,
    Phase.TRANSFERRING: arrive_transferring,
    Phase.REBUILDING: arrive_rebuilding,
    Phase.VERIFYING: advance_verifying,
    Phase.COMMITTED: arrive_committed,
    Phase.CHECKPOINTING: arrive_checkpointing,
}

ADVANCE: dict[Phase, Callable[[Turn], None]] = {
    Phase.FENCING: advance_fencing,
    Phase.PREPARING: advance_preparing,
    Phase.QUIESCING: advance_quiescing,
    Phase.TRANSFERRING: advance_transferring,
    Phase.REBUILDING: advance_rebuilding,
    Phase.VERIFYING: advance_verifying,
    Phase.COMMITTED: advance_committed,
    Phase.CHECKPOINTING: advance_checkpointing,
}


def advance(turn: Turn) -> None:
    """Goes on to the next phase if this one is complete."""
    if turn.state.phase in ADVANCE:
        ADVANCE[turn.state.phase](turn)
