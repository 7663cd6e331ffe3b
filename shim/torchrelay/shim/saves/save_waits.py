"""Waiting for a save: the training thread's, which a migration interrupts as it does a collective."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from torchrelay.shim.comm.collective_mode import CollectiveMode
from torchrelay.shim.comm.collectives import SAVE_RESULT
from torchrelay.shim.comm.finished import FinishedCollective
from torchrelay.shim.script.save_future import SaveFuture, SaveId

if TYPE_CHECKING:
    from torchrelay.shim.step.engine import Engine


class SaveWaits:
    """Waits for saves. `known_whole(save)` is called where others are known to be through with a save."""

    def __init__(self, engine: Engine, known_whole: Callable[[SaveId], None]) -> None:
        self._engine = engine
        self._known_whole = known_whole

    def wait(self, future: SaveFuture, timeout_s: float | None) -> None:
        """Return when the save is over, or `timeout_s` is.

        It counts as a collective, so a joiner knows which waits its peers are through with, and meets them in the one that they are
        in. Its group is the save's own: a script in which some ranks wait and others do not is no mismatch.
        """
        engine = self._engine
        if not engine.takes_part():
            return
        group = f"{future.save_id.group}#{future.save_id.number}"
        engine.communication_begins()
        mode = engine.mode()
        if mode is CollectiveMode.ANSWER and engine.caught_up(group):
            mode = engine.mode()
        if mode is CollectiveMode.ANSWER:
            engine.answer(SAVE_RESULT, group)
            self._known_whole(future.save_id)
            return
        replayed = engine.replayed(SAVE_RESULT, group) if mode is CollectiveMode.REPEAT else None
        if replayed is not None:
            self._known_whole(future.save_id)
        else:
            self._wait(future, timeout_s)
        if mode is not CollectiveMode.OFF and (replayed is not None or _went_well(future)):
            engine.record(FinishedCollective(SAVE_RESULT, group, []))

    def _wait(self, future: SaveFuture, timeout_s: float | None) -> None:
        engine = self._engine
        deadline_s = None if timeout_s is None else time.monotonic() + timeout_s
        while not future.done() and not engine.link.lost:
            left_s = None if deadline_s is None else deadline_s - time.monotonic()
            if left_s is not None and left_s <= 0:
                return
            engine.waiting(True)
            try:
                engine.recovery.wait_until(future.done, left_s)
            finally:
                engine.waiting(False)
            if not future.done() and engine.recovery.interrupted():
                engine.interrupted(RuntimeError("a migration came while a checkpoint was waited for"))


def _went_well(future: SaveFuture) -> bool:
    return future.done() and not future.cancelled() and super(SaveFuture, future).exception() is None
