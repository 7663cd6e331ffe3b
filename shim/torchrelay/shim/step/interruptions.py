"""What becomes of an exception in a step: a communication that was interrupted, or the script's own."""

from __future__ import annotations

from typing import TYPE_CHECKING, NoReturn

from torchrelay.protocol.errors import UnsupportedError
from torchrelay.protocol.words.positions import StandingPosition
from torchrelay.shim.comm.generations.communication_failure import is_communication_failure
from torchrelay.shim.instrument.activation import Activation
from torchrelay.shim.observe import lost_device
from torchrelay.shim.script.rewind import Rewind

if TYPE_CHECKING:
    from torchrelay.shim.step.engine import Engine


class Interruptions:
    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    def interrupted(self, error: RuntimeError, position: StandingPosition | None = None) -> None:
        """Handle a failed communication: return if it is to be tried again, on a new generation; raise otherwise.

        `position`: where the rank stands, if the engine itself does not know that place.
        """
        engine = self._engine
        if engine.recovery.rewinding is not None:
            raise engine.recovery.rewinding from None
        lost_device.end_if_lost(engine, error)
        if engine.commit is None or not (engine.recovery.interrupted() or is_communication_failure(error)):
            raise error
        engine.updates.reads.drop()
        engine.left.pass_over()
        if engine.recovery.stand(position or engine.standing_position(), error):
            self.rewind()

    def rewind(self) -> NoReturn:
        """Go back to the latest boundary, by an exception that its loop catches."""
        engine = self._engine
        assert engine.commit is not None
        engine.recovery.rewinding = Rewind(engine.commit.activation)
        raise engine.recovery.rewinding from None

    def for_good(self, error: RuntimeError) -> None:
        """Handle the failure of a call that cannot be made again, such as a backward. Never returns.

        The rank can go back before the gate only. Raises UnsupportedError where `interrupted` returns.
        """
        self._engine.left.pass_over()
        past_gate = self._engine.left.is_left() or self._engine.step.is_past_gate
        self.interrupted(error, StandingPosition.ONCE if past_gate else None)
        reason = "a backward or forward was interrupted after the optimizer step; it cannot be repeated"
        raise UnsupportedError(reason if past_gate else str(error)) from error

    def may_be_of_garbage(self) -> bool:
        """Return whether an exception of the script, of any type, may come of what an aborted collective has left on a device.

        Before the gate only: behind it nothing counts that was not confirmed.
        """
        return self._engine.comms.leaves_garbage() and not self._engine.step.is_past_gate

    def caught(self, error: BaseException, activation: Activation) -> bool:
        """Return, in a loop's except clause, whether the exception was ours, so that the loop goes on from its boundary."""
        engine = self._engine
        commit = engine.commit
        if commit is None or activation is not commit.activation:
            return False
        if not isinstance(error, Rewind):
            lost_device.end_if_lost(engine, error)
            engine.left.pass_over()
            position = engine.standing_position()
            if engine.step.is_past_gate and position is not StandingPosition.TORN:
                return False
            is_ours = engine.recovery.interrupted() or is_communication_failure(error)
            if not (is_ours if isinstance(error, RuntimeError) else self.may_be_of_garbage()):
                return False
            # It is torn: what an optimizer has begun in its step has failed while it was waited for. All may go back to copies.
            if not engine.recovery.stand(position, error):
                return False
        error.__traceback__ = None
        engine.go_back(commit)
        return True
