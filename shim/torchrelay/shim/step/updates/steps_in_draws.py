"""Optimizer steps that a generator makes while a loop draws its next item from it. No new process can stand within one."""

from __future__ import annotations

from types import FrameType
from typing import TYPE_CHECKING

from torchrelay.protocol.errors import UnsupportedError
from torchrelay.shim.instrument.activation import Activation
from torchrelay.shim.observe.origins import call_site

if TYPE_CHECKING:
    from torchrelay.shim.step.engine import Engine


class StepsInDraws:
    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    def at_step(self, frame: FrameType, running: list[Activation]) -> None:
        """Give up if the step is made within a draw. `running`: the loops around it, from the outermost."""
        engine = self._engine
        if not engine.capturing or engine.way_in is not None or engine.shadow is not None:
            return
        if engine.tracker.is_in_draw(frame, running[-1] if running else None):
            file, line = call_site(frame)
            why = f"the optimizer step at {file}:{line} is made while a loop draws its next item from a generator"
            engine.give_up(UnsupportedError(why))

    def has_yielded(self) -> None:
        """Give up: a generator that trains has yielded. It will be asked again, and a new process has none that stands there."""
        if self._engine.capturing and self._engine.shadow is None:
            self._engine.give_up(
                UnsupportedError("a generator that trains has yielded, and is to go on where it stands")
            )
