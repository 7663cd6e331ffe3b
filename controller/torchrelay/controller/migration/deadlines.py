"""What happens when a phase's deadline passes."""

from __future__ import annotations

from torchrelay.controller.migration.events import Noted
from torchrelay.controller.migration.steps import advance
from torchrelay.controller.migration.turn import Turn, abandon, finish_committed, restart
from torchrelay.protocol.words.phases import PLANNED, UNFORCED, UNPLANNED
from torchrelay.protocol.words.rank_words import ranks_in_words, ranks_with_verb


def _give_up_on(turn: Turn, ranks: list[int], what: str) -> None:
    """Who kept everybody waiting is lost; the others start over. A joiner is blamed first: it costs no state."""
    s = turn.state
    joining = [rank for rank in ranks if rank in s.joiners]
    blamed = [(rank, s.members[rank]) for rank in joining or ranks]
    if not blamed:
        abandon(turn, what)
        return
    named = ", ".join(f"{worker} (rank {rank})" for rank, worker in blamed)
    restart(turn, blamed, f"{named} did not {what} in time")


def suspected_late(turn: Turn) -> None:
    s = turn.state
    restart(turn, [(s.rank, s.holders[s.rank])], s.reason)


def fencing_late(turn: Turn) -> None:
    s = turn.state
    if s.fencing:
        abandon(
            turn, f"{', '.join(sorted(s.fencing))} could not be ended for certain: a rank must not have two holders"
        )
    else:
        missing = sorted(set(s.lost) - s.journals)
        abandon(turn, f"what {ranks_with_verb(missing, 'has', 'have')} written down did not arrive")


def preparing_late(turn: Turn) -> None:
    s = turn.state
    unready = [rank for rank, joiner in sorted(s.joiners.items()) if not joiner.prepared]
    if s.kind == PLANNED:
        abandon(turn, "no process was ready in time to take over")
    elif s.kind == UNPLANNED and (waiting := sorted(s.lost.keys() - s.joiners.keys())):
        s.no_spare = f"no spare got ready for {ranks_in_words(waiting)} within {int(turn.now_s - s.phase_since_s)} s"
        turn.do(Noted(s.no_spare))
        advance(turn)
    elif unready:
        _give_up_on(turn, unready, "get through the script's set-up")
    else:
        abandon(turn, "not enough spares got ready in time to resume")


def quiescing_late(turn: Turn) -> None:
    s = turn.state
    if s.kind in UNFORCED:
        silent = sorted(s.holders.keys() - s.standings.keys())
        abandon(turn, f"{ranks_in_words(silent)} did not get to the end of step {s.quiesce_boundary} in time")
    elif s.asked:
        abandon(turn, "all ranks stand, but where they go on from was not known in time")
    else:
        _give_up_on(turn, sorted(set(s.survivors) - s.standings.keys()), "come to a stand")


def transferring_late(turn: Turn) -> None:
    s = turn.state
    if s.kind == PLANNED:
        abandon(turn, "the transfer of the rank's state took too long")
        return
    silent = sorted(donor for donor, waiting in s.unanswered_serves.items() if waiting)
    if silent:
        _give_up_on(turn, silent, "open its tensor channel")
    else:
        _give_up_on(turn, sorted(s.joiners.keys() - s.transferred), "get its state")


def rebuilding_late(turn: Turn) -> None:
    s = turn.state
    if s.kind == PLANNED:
        abandon(turn, "the new communicators did not connect in time")
    else:
        _give_up_on(turn, sorted(s.members.keys() - s.rebuilt), "connect the new communicators")


def verifying_late(turn: Turn) -> None:
    s = turn.state
    if s.kind == PLANNED:
        abandon(turn, "ranks could not agree in time that all are at the same step")
    else:
        _give_up_on(turn, sorted(s.members.keys() - s.verified), "agree with the others on the step")


def committed_late(turn: Turn) -> None:
    s = turn.state
    silent = sorted(s.members.keys() - s.stepped - s.finished)
    finish_committed(
        turn,
        f"committed; {ranks_with_verb(silent, 'has', 'have')} not finished a step since, which is for the hang watch",
    )


def checkpointing_late(turn: Turn) -> None:
    s = turn.state
    silent = sorted(set(s.survivors) - s.saved)
    began = f"{s.no_spare}, and " if s.no_spare else ""
    abandon(turn, f"{began}{ranks_in_words(silent)} did not save what they hold in time")
