"""What each event does. In which phases, the table says; a report that gets here is of this generation."""

from __future__ import annotations

from typing import Any, cast

from torchrelay.controller.migration.events import (
    BoundaryChosen,
    ChooseBoundary,
    DecideTarget,
    Diverged,
    FenceWorker,
    GateToPass,
    Ignored,
    JournalRead,
    LoseRank,
    MoveRequested,
    NoSpare,
    Noted,
    RankFinished,
    RankLost,
    ReadJournal,
    ResumeRequested,
    RollBackDecided,
    Said,
    SaveRequested,
    SpareChosen,
    SuspicionRaised,
    TargetDecided,
    WorkerGone,
)
from torchrelay.controller.migration.state import JoiningSpare, State
from torchrelay.controller.migration.steps import advance, choose_spares, donor_worker, send_plans
from torchrelay.controller.migration.turn import Turn, abandon, finish_committed, is_joiner, is_member, lose, restart
from torchrelay.protocol.messages import (
    Assign,
    OrderFailed,
    PassGate,
    Prepared,
    QuiesceAnswer,
    QuiesceAt,
    QuiesceDecided,
    Resumed,
    Serve,
    Serving,
    Standing,
    Transferred,
)
from torchrelay.protocol.words.causes import MigrationCause
from torchrelay.protocol.words.order_words import could_not
from torchrelay.protocol.words.phases import CLEARED, PLANNED, RESUME, ROLLBACK, SAVE, UNFORCED, UNPLANNED, Phase
from torchrelay.protocol.words.rank_words import ranks_with_verb

QUIESCE_IDS_PER_GENERATION = 100


def suspect(turn: Turn, event: SuspicionRaised) -> None:
    s = turn.state
    s.begin(UNPLANNED, event.reason, MigrationCause.HANG.value, rank=event.rank)
    s.seconds["detect"] = max(0.0, turn.now_s - event.since_s)
    turn.enter(Phase.SUSPECTED)


def clear(turn: Turn, event: Any) -> None:
    if event.rank != turn.state.rank:
        return
    turn.finish(CLEARED, f"rank {event.rank} moves again")


def first_loss(turn: Turn, event: RankLost) -> None:
    s = turn.state
    if s.holders.get(event.rank) != event.worker:
        turn.do(Ignored(f"{event.worker} does not hold rank {event.rank}"))
        return
    was_suspected = s.phase is Phase.SUSPECTED and event.rank == s.rank
    s.begin(UNPLANNED, event.reason, event.cause, rank=event.rank)
    if not was_suspected:
        s.seconds["detect"] = max(0.0, turn.now_s - event.since_s)
        s.phase_since_s = turn.now_s
    restart(turn, [(event.rank, event.worker)], event.reason)


def move(turn: Turn, event: MoveRequested) -> None:
    s = turn.state
    s.begin(PLANNED, event.reason, event.cause, rank=event.rank, by=event.by)
    s.lost[event.rank] = s.holders[event.rank]
    s.new_round()
    turn.enter(Phase.PREPARING)


def save(turn: Turn, event: SaveRequested) -> None:
    s = turn.state
    s.begin(SAVE, event.reason, MigrationCause.ASKED.value, by=event.by)
    s.new_round()
    turn.enter(Phase.QUIESCING)


def resume(turn: Turn, event: ResumeRequested) -> None:
    s = turn.state
    s.begin(RESUME, event.reason, MigrationCause.RESUME.value)
    s.lost.update(dict.fromkeys(range(s.world_size), ""))
    s.journals.update(s.lost)
    s.new_round()
    turn.enter(Phase.PREPARING)


def lost(turn: Turn, event: RankLost) -> None:
    s = turn.state
    if is_joiner(turn, event.worker) and s.kind == PLANNED and s.phase is Phase.PREPARING:
        # Nobody else knows of this generation yet: the next spare can have a try without a word to the others.
        turn.do(FenceWorker(event.worker, event.reason), Noted(f"{event.reason}; the next spare is tried"))
        s.joiners.clear()
        s.new_round()
        choose_spares(turn)
        return
    lose(turn, event)


def order_failed(turn: Turn, said: Said) -> None:
    s = turn.state
    report = cast(OrderFailed, said.report)
    reason = could_not(said.worker, said.rank, report.order, report.reason)
    waiting = s.unanswered_serves.get(said.rank, [])
    if report.order == Serve.__name__ and waiting and s.donors[waiting[0]] != said.rank:
        waiting.pop(0)
        turn.do(Noted(f"{reason}; others give the same"))
        if not any(s.unanswered_serves.values()):
            send_plans(turn)
        return
    if s.kind in UNFORCED and s.phase is not Phase.FENCING and not is_joiner(turn, said.worker):
        abandon(turn, reason)
    else:
        lost(turn, RankLost(said.rank, said.worker, reason, turn.now_s))


def lost_after_commit(turn: Turn, event: RankLost) -> None:
    if turn.state.holders.get(event.rank) != event.worker:
        return
    finish_committed(turn, f"committed; then {event.reason}")
    turn.do(LoseRank(event))


def order_failed_after_commit(turn: Turn, said: Said) -> None:
    report = cast(OrderFailed, said.report)
    reason = could_not(said.worker, said.rank, report.order, report.reason)
    lost_after_commit(turn, RankLost(said.rank, said.worker, reason, turn.now_s))


def worker_gone(turn: Turn, event: WorkerGone) -> None:
    s = turn.state
    s.fencing.discard(event.worker)
    if s.kind != PLANNED:
        for rank, worker in s.lost.items():
            if worker == event.worker and rank not in s.journals:
                turn.do(ReadJournal(rank, worker))
    advance(turn)


def journal_read(turn: Turn, event: JournalRead) -> None:
    s = turn.state
    s.journals.add(event.rank)
    if s.kind == PLANNED and s.phase is Phase.PREPARING:
        choose_spares(turn)
    elif s.kind == PLANNED and s.phase is Phase.QUIESCING:
        turn.do(DecideTarget())
    else:
        advance(turn)


def spare_chosen(turn: Turn, event: SpareChosen) -> None:
    s = turn.state
    if event.rank not in s.lost or event.rank in s.joiners:
        return
    s.joiners[event.rank] = JoiningSpare(event.worker)
    if event.rank in s.awaiting_spare:
        s.deadline_s = turn.now_s + turn.deadlines.preparing_s  # its set-up begins now
    turn.do(Noted(event.reason))
    turn.order(event.rank, event.worker, Assign(s.generation, event.rank, s.world_size))


def no_spare(turn: Turn, event: NoSpare) -> None:
    s = turn.state
    if event.rank not in s.awaiting_spare or not event.soon:
        turn.do(Noted(event.reason))
    if event.soon:
        if s.kind == UNPLANNED and not s.awaiting_spare:
            s.deadline_s = s.phase_since_s + turn.deadlines.spare_s
        s.awaiting_spare.add(event.rank)
        return
    if s.kind == UNPLANNED:
        s.no_spare = event.reason
        advance(turn)
    else:
        abandon(turn, event.reason)


def spare_warm(turn: Turn, event: Any) -> None:
    choose_spares(turn)


def prepared(turn: Turn, said: Said) -> None:
    s = turn.state
    report = cast(Prepared, said.report)
    joiner = s.joiners.get(said.rank)
    if joiner is None or joiner.worker != said.worker:
        return
    joiner.prepared = True
    joiner.store_host = report.store_host
    joiner.store_port = report.store_port
    advance(turn)


def standing(turn: Turn, said: Said) -> None:
    s = turn.state
    report = cast(Standing, said.report)
    if s.holders.get(said.rank) != said.worker or (s.kind != PLANNED and said.rank in s.lost):
        return
    if s.kind in UNFORCED and s.phase is not Phase.QUIESCING:
        turn.do(Noted(f"rank {said.rank} says that it stands, and nobody has told it to", warning=True))
        return
    s.standings[said.rank] = report
    if s.kind in UNFORCED:
        if report.position != "head" or report.boundary != s.quiesce_boundary:
            abandon(
                turn,
                f"rank {said.rank} stands after step {report.boundary} ({report.position}) "
                f"instead of between step {s.quiesce_boundary} and the next one",
            )
            return
        if s.stopped_since_s is None:
            s.stopped_since_s = turn.now_s
    advance(turn)


def boundary_chosen(turn: Turn, event: BoundaryChosen) -> None:
    s = turn.state
    s.quiesce_id = s.generation * QUIESCE_IDS_PER_GENERATION + s.quiesce_tries
    s.quiesce_boundary = event.boundary
    s.survivors_told = True
    s.quiesce_answers.clear()
    s.deadline_s = turn.now_s + turn.deadlines.quiescing_s + event.allowance_s
    turn.do(Noted(event.reason))
    for rank, worker in sorted(s.holders.items()):
        turn.order(rank, worker, QuiesceAt(s.quiesce_id, s.generation, event.boundary))


def quiesce_answer(turn: Turn, said: Said) -> None:
    s = turn.state
    report = cast(QuiesceAnswer, said.report)
    if s.holders.get(said.rank) != said.worker or report.quiesce_id != s.quiesce_id:
        return
    s.quiesce_answers[said.rank] = report.accepted
    if s.quiesce_answers.keys() < s.holders.keys():
        return
    go = all(s.quiesce_answers.values())
    for rank, worker in sorted(s.holders.items()):
        turn.order(rank, worker, QuiesceDecided(s.quiesce_id, go))
    if go:
        s.quiesce_agreed = True
        return
    s.quiesce_tries += 1
    late = [rank for rank, accepted in sorted(s.quiesce_answers.items()) if not accepted]
    if s.quiesce_tries >= turn.deadlines.quiesce_tries:
        was = ranks_with_verb(late, "was", "were")
        abandon(turn, f"{was} past each step at which all were to stop, {s.quiesce_tries} times")
        return
    turn.do(
        Noted(f"{ranks_with_verb(late, 'was', 'were')} past step {s.quiesce_boundary} already; a later step is tried")
    )
    turn.do(ChooseBoundary(s.quiesce_tries))


def target_decided(turn: Turn, event: TargetDecided) -> None:
    s = turn.state
    s.goes_to(event)
    turn.do(Noted(event.reason))
    turn.enter(Phase.CHECKPOINTING if s.saves else Phase.TRANSFERRING)


def gate_to_pass(turn: Turn, event: GateToPass) -> None:
    """All are asked anew once these ranks stand again."""
    s = turn.state
    s.asked = False
    turn.do(Noted(event.reason))
    for rank in event.ranks:
        del s.standings[rank]
        turn.order(rank, s.holders[rank], PassGate(s.generation))


def roll_back(turn: Turn, event: RollBackDecided) -> None:
    """Survivors end too, and all ranks enter anew: the way of a joiner is the one that leads several steps back."""
    s = turn.state
    s.steps_redone = event.steps_redone
    s.kind = ROLLBACK
    s.journals.update(range(s.world_size))  # those of the copies count, and are there
    s.finished.clear()
    losses = [(rank, s.holders[rank]) for rank in s.survivors]
    losses += [(rank, s.joiners[rank].worker) for rank in event.stale if rank in s.joiners]
    restart(turn, losses, event.reason)


def diverged(turn: Turn, event: Diverged) -> None:
    """All save what they hold, and the job ends. What is unforced is given up alone: what it has found will be found again."""
    s = turn.state
    if s.kind in UNFORCED:
        abandon(turn, event.reason)
        return
    if s.phase is Phase.HEALTHY:
        s.begin(UNPLANNED, event.reason, MigrationCause.NUMBERS.value, rank=event.rank)
        s.phase_since_s = turn.now_s
    joining = [(rank, joiner.worker) for rank, joiner in s.joiners.items()]
    restart(turn, joining, event.reason, no_spare=event.reason)
    advance(turn)


def impossible(turn: Turn, event: Any) -> None:
    abandon(turn, event.reason)


def serving(turn: Turn, said: Said) -> None:
    s = turn.state
    report = cast(Serving, said.report)
    waiting = s.unanswered_serves.get(said.rank)
    if not waiting or donor_worker(s, said.rank) != said.worker:
        return
    lost_rank = waiting.pop(0)
    where = [report.host, report.port]
    if s.donors[lost_rank] == said.rank:
        s.serving[lost_rank] = where
    else:
        s.helping.setdefault(lost_rank, []).append(where)
    if not any(s.unanswered_serves.values()):
        send_plans(turn)


def transferred(turn: Turn, said: Said) -> None:
    s = turn.state
    report = cast(Transferred, said.report)
    if is_joiner(turn, said.worker) and said.rank not in s.transferred:
        s.transferred.add(said.rank)
        s.transferred_bytes += report.size_bytes
        if report.differed and said.rank in s.donors:
            turn.do(Noted(_come_apart(s, said.rank, report.differed), warning=True))
        advance(turn)


def _come_apart(s: State, rank: int, difference: str) -> str:
    donor = s.donors[rank]
    helpers = s.helpers.get(rank, ())
    if helpers:
        named = ", ".join(map(str, sorted((donor, *helpers))))
        found = f"ranks {named} were taken to hold the same, and do not"
    else:
        found = f"rank {donor} does not hold what another rank had begun to give"
    return (
        f"{found} ({difference}); all of rank {rank} is from rank {donor}. A device may compute wrongly: "
        "--watch replicas says whose, from three ranks on"
    )


def rebuilt(turn: Turn, said: Said) -> None:
    if is_member(turn, said):
        turn.state.rebuilt.add(said.rank)
        advance(turn)


def verified(turn: Turn, said: Said) -> None:
    if is_member(turn, said):
        turn.state.verified.add(said.rank)
        advance(turn)


def resumed(turn: Turn, said: Said) -> None:
    if is_member(turn, said):
        s = turn.state
        s.resumed.add(said.rank)
        s.steps_redone = max(s.steps_redone, cast(Resumed, said.report).steps_redone)
        advance(turn)


def stepped(turn: Turn, said: Said) -> None:
    if is_member(turn, said):
        turn.state.stepped.add(said.rank)
        advance(turn)


def finished(turn: Turn, event: RankFinished) -> None:
    s = turn.state
    s.finished.add(event.rank)
    if s.kind in UNFORCED and s.phase in (Phase.PREPARING, Phase.QUIESCING):
        ready = "the spare was ready" if s.phase is Phase.PREPARING else "all ranks stood still"
        left = "move" if s.kind == PLANNED else "save"
        abandon(
            turn, f"rank {event.rank} reached the end of its script before {ready}: there is nothing left to {left}"
        )
    else:
        advance(turn)
