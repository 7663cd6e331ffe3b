"""The handlers of events while a checkpoint is saved: a just-in-time one, or one that was asked for."""

from __future__ import annotations

from typing import cast

from torchrelay.controller.migration.events import (
    CheckpointFailed,
    CheckpointWritten,
    FolderChosen,
    Noted,
    RankLost,
    Said,
)
from torchrelay.controller.migration.steps import advance, order_saves
from torchrelay.controller.migration.turn import Turn, abandon, lose, restart, tell_old_generation
from torchrelay.protocol.messages import OrderFailed, SaveCheckpoint
from torchrelay.protocol.words.phases import CHECKPOINT, SAVE, SAVED


def lost_while_saving(turn: Turn, event: RankLost) -> None:
    """Take note of a dead rank. What it leaves is enough, unless it was to write tensors and has not, or all ranks are to go on."""
    s = turn.state
    if s.holders.get(event.rank) != event.worker or event.rank in s.lost or event.rank in s.departed:
        return
    if s.kind == SAVE or (event.rank in s.savers and event.rank not in s.saved):
        lose(turn, event)
        return
    turn.do(Noted(f"{event.reason}; its part of the checkpoint does not need it any more"))
    s.saved.add(event.rank)
    s.departed[event.rank] = event.worker
    advance(turn)


def order_failed_while_saving(turn: Turn, said: Said) -> None:
    """Take note that a rank could not write. It holds what it held: it is asked for it in another folder, and is not lost."""
    s = turn.state
    report = cast(OrderFailed, said.report)
    reason = f"{report.order} failed: {report.reason}"
    if not report.unharmed and s.kind == SAVE:
        abandon(turn, f"rank {said.rank}: {reason}")
    elif not report.unharmed:
        lost_while_saving(turn, RankLost(said.rank, said.worker, reason, turn.now_s))
    elif report.order != SaveCheckpoint.__name__:
        turn.do(Noted(f"rank {said.rank} holds what it held, but {reason}"))
    elif s.holders.get(said.rank) == said.worker:
        s.unsaved[said.rank] = report.reason
        advance(turn)


def folder_chosen(turn: Turn, event: FolderChosen) -> None:
    """Write everything once more, in the folder that was chosen."""
    s = turn.state
    s.directory = event.directory
    s.asked = False
    s.unsaved.clear()
    s.saved.clear()
    turn.do(Noted(event.reason))
    if gone := sorted(s.departed.keys() & set(s.savers)):
        restart(turn, [], f"ranks {gone} had saved their tensors, and are gone: others have to")
        return
    s.saved.update(s.departed)
    allowed_s = turn.deadlines.of(s.phase)
    s.deadline_s = None if allowed_s is None else turn.now_s + allowed_s
    order_saves(turn)


def saved(turn: Turn, said: Said) -> None:
    s = turn.state
    if s.holders.get(said.rank) == said.worker:
        s.saved.add(said.rank)
        advance(turn)


def checkpoint_written(turn: Turn, event: CheckpointWritten) -> None:
    if turn.state.kind == SAVE:
        reason = f"the checkpoint of step {turn.state.target} is in {event.directory}"
        tell_old_generation(turn, f"{reason}: all go on")
        turn.finish(SAVED, reason)
        return
    turn.finish(CHECKPOINT, f"{turn.state.no_spare}; a just-in-time checkpoint is in {event.directory}", fatal=True)


def checkpoint_failed(turn: Turn, event: CheckpointFailed) -> None:
    abandon(turn, event.reason if turn.state.kind == SAVE else f"{turn.state.no_spare}, and {event.reason}")
