"""A training loop that is left at its head: by a `break` there, with one more batch drawn, or by a return.

The boundary at that head is one that nobody can go back to. What follows counts as what it is where a loop ends by itself: the
rest of the step before, which whoever replaces a rank goes through from that step's gate on, past this head.
"""

from __future__ import annotations

import os
import sys
from dataclasses import replace
from types import FrameType
from typing import TYPE_CHECKING

from torchrelay.protocol.errors import StateMismatchError
from torchrelay.protocol.messages import Plan
from torchrelay.protocol.words.positions import RankPhase
from torchrelay.shim.capture.state import lost_objects
from torchrelay.shim.journal.script_modules import script_frames

if TYPE_CHECKING:
    from torchrelay.shim.instrument.activation import Activation
    from torchrelay.shim.step.boundary_snapshot import BoundarySnapshot
    from torchrelay.shim.step.engine import Engine


class LeftLoops:
    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._process = os.getpid()
        self.place = ""
        """Place of the boundary that was passed over; empty from the next boundary on."""

    def is_left(self) -> bool:
        """Return whether the loop of the latest boundary was left before a step had begun. Changes nothing."""
        engine = self._engine
        commit = self._engine.commit
        if self.place or commit is None:
            return bool(self.place)
        if not self._is_at_head(commit):
            return False
        activation = commit.activation
        tracker = engine.tracker
        # The iterator of a `for` tells by itself when it is let go.
        runs = activation in tracker.stack and (
            activation.iterator is not None or activation in tracker.around(sys._getframe(1))
        )
        return not runs

    def pass_over(self) -> None:
        """If the loop was left, pass over its head: what follows is the rest of the step before.

        Called where that begins to count: at a loop's head, in front of a communication, and when one was interrupted.
        """
        if not self.place and self.is_left():
            self._pass_over()

    def ended(self, activation: Activation) -> None:
        """Note that the loop's iterator was let go. A process that replaces this rank from here on must not come in at its head."""
        commit = self._engine.commit
        if commit is None or activation is not commit.activation:
            return
        self._engine.updates.look_no_more()
        self._engine.gradients.fates.step_ends()
        if not self._is_at_head(commit):
            return
        # What the script has forked shares the journal's memory, and has a copy of the iterator to let go.
        if self._engine.on_training_thread() and os.getpid() == self._process:
            self._withdraw(commit)

    def let_go(self, frame: FrameType) -> None:
        """Let go of what functions held that have returned since the latest boundary, where nobody goes back to that any more.

        `frame`: of a loop around it that is at its head.
        """
        engine = self._engine
        commit = engine.commit
        if commit is None or engine.step.gradients_open or commit.activation in engine.tracker.stack:
            return
        if engine.shadow is not None:
            return  # a joiner in the rest of a step still compares what it has with what the lost rank had
        ended: Activation | None = commit.activation
        while ended is not None and ended not in engine.tracker.stack:
            ended.let_go()
            ended = ended.around
        engine.draws.let_go()
        if lost_objects.let_go(commit.state, script_frames(frame)):
            engine.trees.watched = None

    def _is_at_head(self, commit: BoundarySnapshot) -> bool:
        """Return whether nothing of a step has been done since the boundary, and there was a step before."""
        engine = self._engine
        has_begun = engine.step.gradients_open or engine.updates.have_begun()
        in_body = engine.step.is_in_body
        return in_body and not has_begun and engine.shadow is None and commit.boundary > 0

    def _withdraw(self, commit: BoundarySnapshot) -> None:
        self._engine.journal.write_boundary(commit.boundary, b"")

    def _pass_over(self) -> None:
        engine = self._engine
        commit = self._engine.commit
        assert commit is not None
        engine.again.leave()
        engine.gradients.fates.step_ends()
        engine.updates.writes.drop()
        self._withdraw(commit)
        self.place = commit.place
        engine.stands_at(replace(commit, boundary=commit.boundary - 1))
        for entry in engine.records.behind_gate():
            engine.collective_side.check_kept(entry)
        engine.step.left_loop()
        engine.phase(RankPhase.AFTER)


class HeadsToPass:
    """Heads of loops at which the others have left them, each once. For a joiner in the rest of a step."""

    def __init__(self) -> None:
        self._passed: set[str] = set()

    def is_one(self, plan: Plan, place: str) -> bool:
        """Return whether the others have left their loop at the head that the joiner has come to. `place`: of that head.

        Raises StateMismatchError where the loop goes on here instead.
        """
        over = plan.place not in ("", place) if plan.donor_collectives < 0 else bool(plan.left)
        if over and (place in self._passed or plan.left in self._passed):
            raise StateMismatchError("the loop that the others have left at its head goes on here")
        if over:
            self._passed.add(place)
        return over
