"""A rank that goes on without protection: when that is allowed, and how it is told."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

from torchrelay.protocol.errors import TorchrelayError, UnsupportedError
from torchrelay.protocol.messages import Disabled
from torchrelay.shim.comm.generations.communication_failure import is_communication_failure
from torchrelay.shim.observe import lost_device
from torchrelay.shim.script.guard import reason_of

if TYPE_CHECKING:
    from torchrelay.shim.step.engine import Engine


class Unprotected:
    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self.reason = ""
        """Empty as long as the rank is protected."""
        self._raised: tuple[Exception, int] | None = None
        """The latest exception of ours that went to the script, and how many gates were passed then."""

    def fails_closed(self, error: Exception) -> bool:
        """Return whether going on without protection could end in a wrong number, or leave others waiting."""
        lost_device.end_if_lost(self._engine, error)
        if is_communication_failure(error) or self.migrates():
            return True
        has_migrated = self._engine.comms.now.number > 0 or self._engine.draws.rewinds > 0
        return has_migrated and isinstance(error, TorchrelayError)

    def raises(self, error: Exception) -> None:
        """Note that an exception goes to the script."""
        self._raised = error, self._engine.step.gates_passed

    def begins_step(self) -> None:
        """Forget what has been raised before: it holds the frames that it came through."""
        self._raised = None

    def behind(self, failure: BaseException) -> BaseException:
        """Return why the script has failed: where it has caught an exception of ours in this step, and exited, that one."""
        if isinstance(failure, SystemExit) and self._raised is not None:
            error, gates_passed = self._raised
            return error if gates_passed == self._engine.step.gates_passed else failure
        return failure

    def migrates(self) -> bool:
        """Return whether a migration is under way for this rank, the step that is done again after it included."""
        engine = self._engine
        recovery = self._engine.recovery
        is_joiner = engine.shadow is not None or engine.way_in is not None or engine.records.answers is not None
        stands = recovery.standing or recovery.rewinding is not None or recovery.interrupted()
        return is_joiner or stands or engine.again.looks()

    def costs_too_much(self) -> bool:
        """Give up, at a head, where capture has slowed training for good. Return whether it did."""
        engine = self._engine
        if not engine.budget.exceeded() or self.migrates():
            return False
        state = engine.commit.state if engine.commit is not None else None
        self.give_up(UnsupportedError(engine.budget.reason(state)))
        return True

    def joins_unevenly(self) -> None:
        self.trains_unevenly("ranks train on unlike numbers of batches (`join()`): some go on when others are through")

    def trains_unevenly(self, reason: str) -> None:
        """Give up, and wait for no rank in front of updates from here on.

        Ranks that are through make no more steps, while others go on.
        """
        self.give_up(UnsupportedError(reason))
        self._engine.tracker.live = False

    def give_up(self, error: Exception) -> None:
        """Give up protection: this rank cannot be replaced any more, nor stand in for others. It still takes part in the gates."""
        engine = self._engine
        if engine.commit is not None:
            engine.replicas.first_writes.drop()
            if engine.own is not None:
                engine.own.drop()
            engine.updates.unprotected_in(engine.commit.activation.site)
        engine.stop_capturing()
        if self.reason:
            return
        self.reason = "an error"  # whatever telling leads to
        engine.draws.stop()
        engine.gradients.fates.step_ends()
        engine.let_go()
        self.reason = reason_of(error)
        # Telling must not end what it speaks of: the script may have closed the stream, or put an object of its own in its place.
        with contextlib.suppress(Exception):
            engine.log.say(f"this rank is no longer protected: {self.reason}")
        with contextlib.suppress(Exception):
            engine.link.send(Disabled(self.reason))
