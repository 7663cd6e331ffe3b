"""Forward passes of a sharded model after the optimizer step: its parameters are gathered, which a new process cannot do again."""

from __future__ import annotations

from typing import TYPE_CHECKING

from torchrelay.protocol.errors import StateMismatchError

if TYPE_CHECKING:
    from torchrelay.shim.step.engine import Engine

_WHAT = "a forward pass of a sharded model after the optimizer step"


class LateForwards:
    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self.seen = False
        """Whether there was such a forward in this step."""

    def alone(self) -> None:
        """Raise StateMismatchError in a joiner that goes through the rest of a step without peers."""
        if self._engine.behind_gate():
            raise StateMismatchError(_WHAT)

    def after_step(self) -> None:
        if not self.seen:
            self.seen = True
            if self._engine.commit is not None:
                self._engine.reporter.sharded_forward_late(self._engine.commit, _WHAT)

    def confirm(self) -> None:
        """Wait, at the next head, for what was gathered on a device, which is part of the state now.

        It may have been let go before it was there. Raises UnsupportedError in this case, once a migration is over that takes no
        rank back behind its update.
        """
        try:
            self._engine.confirm()
        except RuntimeError as error:
            self._engine.interrupted_for_good(error)
