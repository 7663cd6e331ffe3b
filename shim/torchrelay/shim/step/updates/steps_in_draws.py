"""Optimizer steps where no new process can stand: within the draw of a loop's next item, or within a comprehension."""

from __future__ import annotations

import sys
from types import FrameType
from typing import TYPE_CHECKING

from torchrelay.protocol.errors import UnsupportedError
from torchrelay.shim.adapters.cpython.comprehensions import comprehension_around
from torchrelay.shim.instrument.activation import Activation
from torchrelay.shim.observe.origins import call_site

if TYPE_CHECKING:
    from torchrelay.shim.step.engine import Engine


class StepsInDraws:
    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._computed_in = 0
        """The frame of the comprehension in which gradients were computed last, by id; 0 where it was in none."""

    def gradients_begin(self) -> None:
        commit = self._engine.commit
        around = None if commit is None else comprehension_around(sys._getframe(1), commit.activation.frame)
        self._computed_in = 0 if around is None else id(around)

    def at_step(self, frame: FrameType, running: list[Activation]) -> None:
        """Give up if the step is made within a draw, or is a further one within a comprehension that computes gradients as well.

        What the comprehension has made of weights before their update is in no variable, and so in no journal. `running`: the
        loops around it, from the outermost.
        """
        engine = self._engine
        if not engine.capturing or engine.way_in is not None or engine.shadow is not None:
            return
        if self._computed_in and engine.updates.have_begun() and running:
            around = comprehension_around(frame, running[-1].frame)
            if around is not None and id(around) == self._computed_in:
                file, line = call_site(frame)
                why = (
                    f"the optimizer steps at {file}:{line} are made within a comprehension, whose items nobody else has"
                )
                engine.give_up(UnsupportedError(why))
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
