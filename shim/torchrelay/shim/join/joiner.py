"""A spare that was given a rank: does the script's set-up, is led to the training loop, and becomes that rank there."""

from __future__ import annotations

from types import FrameType
from typing import TYPE_CHECKING

from torchrelay.protocol.errors import TorchrelayError
from torchrelay.protocol.messages import Assign
from torchrelay.protocol.words.positions import JoinerAction
from torchrelay.shim.capture import rng
from torchrelay.shim.instrument.activation import Activation
from torchrelay.shim.join.destination import Destination
from torchrelay.shim.join.fast_forward import FastForward, Goal, check_texts
from torchrelay.shim.join.joiner_dialogue import Dialogue
from torchrelay.shim.join.put_state import put_state
from torchrelay.shim.join.recorded import RecordedPlace
from torchrelay.shim.join.restore_at_boundary import arrive
from torchrelay.shim.join.shadow_step import ShadowStep, check_answered
from torchrelay.shim.journal import payload
from torchrelay.shim.step import boundary_proof

if TYPE_CHECKING:
    from torchrelay.shim.set_up.staging import Staging
    from torchrelay.shim.step.engine import Engine


class Joiner:
    """Enters where its way in ends; from there on the engine is what the loops talk to."""

    def __init__(self, engine: Engine, assign: Assign, staging: Staging) -> None:
        self._engine = engine
        self._staging = staging
        self._dialogue = Dialogue(engine, assign.generation)
        self._set_up: payload.SetUpJournal = payload.load(assign.set_up, payload.SetUpJournal)
        engine.join_by(FastForward(engine, self._set_up, self), self._set_up.collectives)

    # On the way in.

    def wait_for_plan(self) -> payload.BoundaryJournal:
        plan = self._dialogue.wait_for_plan()
        if not plan.directory:  # from a checkpoint all enter anew, with the files that there are
            check_texts(self._set_up)
        assert self._dialogue.journal is not None
        return self._dialogue.journal

    def newer_set_up(self) -> payload.SetUpJournal | None:
        """Return what the lost rank has recorded since this process began its set-up, if that is something else."""
        plan = self._dialogue.plan
        recorded = b"" if plan is None else plan.set_up
        return payload.load(recorded, payload.SetUpJournal) if recorded else None

    def check_answered(self) -> None:
        check_answered(self._engine)

    def put(self, goal: Goal, state: RecordedPlace, innermost: FrameType) -> None:
        put_state(self._engine, goal.trees, state, innermost)

    # At the head.

    def enter(self, goal: Goal, activation: Activation) -> None:
        engine = self._engine
        journal = goal.journal
        plan = self._dialogue.plan
        assert plan is not None
        engine.arrive()
        left = arrive(engine, goal, activation)
        if plan.action == JoinerAction.ENTER:
            self._take_state(goal, left, activation.frame)
            self._staging.release()
            engine.be_the_rank({})
        else:
            destination = self._dialogue.destination(activation.frame)
            destination.make_gradients(self._dialogue.gradients())
            destination.make_optimizer_state()
            engine.begin_shadow_step(ShadowStep(engine, self._dialogue, goal.trees, self._staging))
        rng.restore(journal.rng)
        engine.hear_loops()
        engine.take_boundary(activation, journal.boundary)
        if plan.directory and plan.action == JoinerAction.ENTER and engine.commit is not None:
            engine.again.begin(
                engine.commit.state
            )  # whoever has saved these tensors may have been in the middle of the step

    def _take_state(self, goal: Goal, left: frozenset[int], innermost: FrameType) -> None:
        """Take tensors from the donor, then the communicators of the new generation, then the go-ahead.

        `left`: as `arrive` returns it. Begins anew if another rank is lost meanwhile: what this process holds is still what the
        lost rank held at this head.
        """
        destination = self._dialogue.destination(innermost)
        while True:
            try:
                arrived = self._dialogue.receive(destination)
                self._take_gradients(destination)
                assert self._dialogue.journal is not None
                boundary_proof.check_entered(self._engine, self._dialogue.journal, goal.trees, innermost, left)
                self._dialogue.join(arrived)
            except (RuntimeError, OSError, TorchrelayError) as error:
                self._dialogue.begin_anew(error)
            else:
                return

    def _take_gradients(self, destination: Destination) -> None:
        plan = self._dialogue.plan
        assert plan is not None
        record = self._dialogue.gradients()
        unproven = destination.enter(record, own=bool(plan.kept or plan.directory))
        self._engine.gradients.take_over(record.learned, unproven)

    def failed(self, error: BaseException) -> None:
        """Tell the controller that another spare is needed, unless this process is the rank: then the script has failed.

        What the set-up printed is shown, for those who look for the reason.
        """
        if self._dialogue.is_over:
            return
        self._staging.show()
        self._dialogue.failed(error)
