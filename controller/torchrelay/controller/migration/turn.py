"""One event's turn: the state, the instructions so far, and the moves that several handlers share."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from torchrelay.controller.migration.events import (
    FenceWorker,
    Finished,
    Instruction,
    LoseRank,
    Noted,
    Order,
    PhaseEntered,
    RankLost,
    Said,
)
from torchrelay.controller.migration.state import State
from torchrelay.protocol.messages import Abandon, Interrupt, ShimOrder
from torchrelay.protocol.words.phases import (
    ABANDONED,
    COMMITTED,
    DOWNTIME_ROWS,
    PLANNED,
    SAVE,
    UNFORCED,
    UNPLANNED,
    Deadlines,
    Phase,
)


class Turn:
    """One event's turn. `arrive` has what is done on entering a phase; `hops` are the phases entered in this turn."""

    def __init__(
        self,
        state: State,
        deadlines: Deadlines,
        now_s: float,
        arrive: Mapping[Phase, Callable[[Turn], None]],
    ) -> None:
        self.state = state
        self.deadlines = deadlines
        self.now_s = now_s
        self.out: list[Instruction] = []
        self.hops: list[Phase] = []
        self._arrive = arrive

    def do(self, *instructions: Instruction) -> None:
        self.out.extend(instructions)

    def order(self, rank: int, worker: str, order: ShimOrder) -> None:
        self.do(Order(worker, rank, order))

    def order_members(self, order: ShimOrder) -> None:
        for rank, worker in self.state.members.items():
            self.order(rank, worker, order)

    def enter(self, phase: Phase) -> None:
        """Enter a phase: account for the one that ends, set the new one's deadline, and do what is due on arrival."""
        s = self.state
        before_s = self._close_phase()
        s.phase = phase
        s.phase_since_s = self.now_s
        allowed_s = self.deadlines.of(phase)
        s.deadline_s = None if allowed_s is None else self.now_s + allowed_s
        self.hops.append(phase)
        self.do(PhaseEntered(phase, before_s))
        if phase in self._arrive:
            self._arrive[phase](self)

    def _close_phase(self) -> float:
        s = self.state
        since_s = s.phase_since_s
        if s.kind in UNFORCED and s.phase is Phase.QUIESCING:
            # Until the first rank stands at the agreed boundary, training goes on.
            since_s = self.now_s if s.stopped_since_s is None else s.stopped_since_s
        row = s.phase.value
        if row in DOWNTIME_ROWS:
            if s.kind == PLANNED and s.phase is Phase.PREPARING:
                row = "prepare_beside"
            s.seconds[row] = s.seconds.get(row, 0.0) + self.now_s - since_s
        return self.now_s - s.phase_since_s

    def finish(self, outcome: str, reason: str, fatal: bool = False) -> None:
        s = self.state
        s.outcome = outcome
        self.enter(Phase.ABANDONED if outcome == ABANDONED else Phase.HEALTHY)
        self.do(Finished(outcome, reason, fatal, s.directory))


def is_member(turn: Turn, said: Said) -> bool:
    return turn.state.member(said.rank) == said.worker


def is_joiner(turn: Turn, worker: str) -> bool:
    return any(joiner.worker == worker for joiner in turn.state.joiners.values())


def tell_old_generation(turn: Turn, reason: str, except_worker: str = "") -> None:
    """Let all ranks go on as if nothing had been, in a migration that was not forced."""
    s = turn.state
    if s.survivors_told:
        for rank, worker in sorted(s.holders.items()):
            if worker != except_worker:
                turn.order(rank, worker, Abandon(s.generation, reason))
        s.survivors_told = False


def abandon(turn: Turn, reason: str) -> None:
    """Give up. A save, or a planned move before the leaver is told to end: the job goes on as it was. Otherwise it cannot."""
    s = turn.state
    harmless = s.kind in UNFORCED and s.phase is not Phase.FENCING
    if harmless:
        tell_old_generation(turn, reason)
    for joiner in s.joiners.values():
        turn.do(FenceWorker(joiner.worker, f"its migration is given up: {reason}"))
    turn.finish(ABANDONED, reason, fatal=not harmless)


def restart(turn: Turn, losses: Iterable[tuple[int, str]], reason: str, no_spare: str = "") -> None:
    """Start a new round, in a new generation, in which `losses` (rank, worker) have no part.

    `no_spare`: why no spare is to be taken, so that all ranks save what they hold.
    """
    s = turn.state
    losses = [*losses, *s.departed.items()]
    s.departed.clear()
    s.new_round()
    s.no_spare = no_spare
    for rank, worker in losses:
        if rank in s.joiners and s.joiners[rank].worker == worker:
            del s.joiners[rank]
        else:
            s.lost[rank] = worker
        s.fencing.add(worker)
        turn.do(FenceWorker(worker, reason))
    for joiner in s.joiners.values():
        joiner.prepared = False
    turn.do(Noted(f"generation {s.generation}: {reason}"))
    turn.order_members(Interrupt(s.generation, reason))
    turn.enter(Phase.FENCING)


def _become_unplanned(turn: Turn, lost: RankLost) -> None:
    """Turn the migration into that of a lost rank. What it was before, a planned move or a save, is off."""
    s = turn.state
    leaver_lost = s.lost.get(lost.rank) == lost.worker
    off = "the checkpoint" if s.kind == SAVE else f"the planned migration of rank {s.rank}"
    reason = f"{off} is off: {lost.reason}"
    tell_old_generation(turn, reason, except_worker=lost.worker)
    s.begin(UNPLANNED, lost.reason, lost.cause, rank=lost.rank)
    s.journals.clear()
    s.seconds = {"detect": max(0.0, turn.now_s - lost.since_s)}
    s.phase_since_s = turn.now_s
    if not leaver_lost:
        # What joined for the leaver has run the set-up of the leaver's rank: it cannot become another one.
        for joiner in s.joiners.values():
            s.fencing.add(joiner.worker)
            turn.do(FenceWorker(joiner.worker, reason))
        s.joiners.clear()
        s.lost.clear()
    restart(turn, [(lost.rank, lost.worker)], lost.reason)


def lose(turn: Turn, lost: RankLost) -> None:
    """Take note that a worker of this migration is lost before COMMITTED."""
    s = turn.state
    known = s.member(lost.rank) == lost.worker or (s.kind == PLANNED and s.lost.get(lost.rank) == lost.worker)
    if not known or lost.worker in s.fencing:
        return
    if s.kind not in UNFORCED:
        restart(turn, [(lost.rank, lost.worker)], lost.reason)
    elif s.phase is Phase.FENCING:
        s.postponed.append(lost)
        turn.do(Noted(f"{lost.reason}; its turn comes when rank {s.rank} has moved, which is decided already"))
    elif not is_joiner(turn, lost.worker):
        _become_unplanned(turn, lost)
    else:
        abandon(turn, lost.reason)


def finish_committed(turn: Turn, reason: str) -> None:
    s = turn.state
    turn.finish(COMMITTED, reason)
    for lost in s.postponed:
        turn.do(LoseRank(lost))
    s.postponed.clear()
