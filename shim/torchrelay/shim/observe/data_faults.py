"""Where faults in the phase `data` strike: as a step's data is drawn, from a data loader or from anything else."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torchrelay.shim.instrument.activation import Activation
    from torchrelay.shim.step.engine import Engine


class DataFaults:
    """Strikes a draw that asks a data loader there, and another draw when its item is there.

    Of the draws that ask no loader, those count that are the training loop's own, or a `next` in the loop's body before the
    optimizer step: then the loop itself only counts.
    """

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._draw = engine.drawn
        self._drawing = False
        self._body_draws = False
        """Whether there was a draw in a body, before the step, since a loop has drawn itself."""

    def install(self) -> None:
        self._engine.drawn = self.drawn
        self._engine.draws.on_draw = self.asked

    def asked(self) -> None:
        """Note that a data loader is asked for its next item."""
        self._engine.alive()
        self._body_draws |= self._before_step()
        self._strike()

    def drawn(self, iterator: Any, default: tuple[Any, ...]) -> Any:
        if self._drawing:
            return self._draw(iterator, default)  # by a generator that is being asked itself
        loop = self._engine.tracker.drawing
        only_counts = self._body_draws
        self._drawing = True
        try:
            item = self._draw(iterator, default)
        finally:
            self._drawing = False
        if loop is None:
            self._body_draws |= self._before_step()
            strikes = self._before_step() and self._engine.tracker.inside_boundary()
        else:
            self._body_draws = False
            strikes = self._trains(loop) and not only_counts
        if strikes:
            self._strike()  # where a loader was asked, that has struck already
        return item

    def _before_step(self) -> bool:
        return self._engine.step.is_before_update

    def _trains(self, loop: Activation) -> bool:
        """Return whether the loop trains, as far as that is known after the first step."""
        return loop.site in self._engine.tracker.boundary_sites or loop in self._engine.training.step_stack[-1:]

    def _strike(self) -> None:
        """Inject the fault. What is drawn after a step is the next one's."""
        self._engine.inject("data", self._engine.step.gates_passed + 1)
