"""The gate in front of an update, which a rank passes once every rank has all its gradients of the step."""

from __future__ import annotations

import time
from types import FrameType
from typing import TYPE_CHECKING

from torchrelay.protocol.messages import FirstStep
from torchrelay.protocol.words.positions import RankPhase, StandingPosition
from torchrelay.shim.instrument.activation import Activation
from torchrelay.shim.script.rewind import Rewind
from torchrelay.shim.step.costs import OwnWork
from torchrelay.shim.step.updates.early_updates import EarlyUpdates
from torchrelay.shim.step.updates.early_writes import EarlyWrites

if TYPE_CHECKING:
    from torchrelay.shim.step.boundary_snapshot import BoundarySnapshot
    from torchrelay.shim.step.engine import Engine


class UpdateGate:
    """The gate of one rank. `early`, `writes`: what the step has done before its gate, which is final once the gate is passed."""

    def __init__(self, engine: Engine, early: EarlyUpdates, writes: EarlyWrites) -> None:
        self._engine = engine
        self._early = early
        self._writes = writes
        self.is_through = False
        """Whether the latest gate that was waited at has been passed, counted or not."""
        self.is_owed = False
        """Of an unprotected rank: whether there was an update in this iteration, and no gate yet."""
        self._first_step_due = False

    def expect_first_step(self) -> None:
        """Expect the first step of a generation: the controller is told when its gate is passed."""
        self._first_step_due = True

    def pass_protected(self, frame: FrameType) -> None:
        """Pass the gate, only after every rank has all its gradients of this step."""
        engine = self._engine
        assert engine.commit is not None
        boundary = engine.commit.boundary
        engine.step.reached_gate()
        engine.phase(RankPhase.GATE)
        if engine.shadow is not None:
            engine.shadow.at_gate(frame, engine.heads_at_gate())
        else:
            engine.inject("gate")
            if engine.keeper is not None:
                engine.keeper.at_gate(boundary)
            if engine.numbers is not None:
                engine.numbers.at_gate(engine.commit)
            engine.layouts.note(boundary + 1)
            self._look_at_writes(engine.commit)
            self._write(frame)  # before the gate: whoever passes it relies on this rank's journal being whole
            self._wait(StandingPosition.BEHIND if engine.step.behind else StandingPosition.GATE)
            if engine.numbers is not None:
                engine.numbers.passed()
        self.passed(boundary + 1)
        engine.phase(RankPhase.UPDATE)
        engine.inject("optimizer")
        if self._first_step_due and engine.shadow is None:
            self._first_step_due = False
            engine.link.send(FirstStep(engine.comms.now.number, engine.step.gates_passed))

    def at_head(self, activation: Activation) -> bool:
        """Confirm early updates in a gate at the iteration's end. Return whether the iteration has to be done again."""
        engine = self._engine
        commit = engine.commit
        if commit is None or (activation is not commit.activation and commit.activation in engine.tracker.stack):
            return False
        engine.again.leave()
        engine.step.reached_gate()
        self.is_through = False
        engine.phase(RankPhase.GATE)
        self._look_at_writes(commit)  # what lay behind the updates of other iterations lay before this gate
        try:
            self._wait(StandingPosition.GATE if activation is commit.activation else StandingPosition.ASTRAY)
        except Rewind:
            activation.heads -= 1
            engine.go_back(commit)
            return True
        self.passed(commit.boundary + 1)
        engine.step.updated_before_gate()
        return False

    def _look_at_writes(self, commit: BoundarySnapshot) -> None:
        self._writes.at_gate(commit.state, {id(tensor) for tensor in self._early.tensors()})

    def at_head_unprotected(self) -> None:
        """Pass the gate at the end of an iteration that has made fewer updates than others."""
        if self.is_owed:
            self.pass_unprotected(-1)

    def pass_unprotected(self, number: int) -> None:
        """Pass the gate in a rank that captures nothing, or in a step at which no process can come in.

        `number`: as Gate.wait has it.
        """
        engine = self._engine
        engine.phase(RankPhase.GATE)
        engine.waiting(True)
        try:
            self._pass(number)
        finally:
            engine.waiting(False)
        self.count()

    def _pass(self, number: int) -> None:
        """Return when all ranks are at this gate, or once gates are lifted. Raise RuntimeError when the generation is broken."""
        engine = self._engine
        if engine.keeper is None:
            engine.comms.gate(number)
        else:
            engine.keeper.meet()
            yes, busy = engine.keeper.asks(number)
            engine.keeper.agreed(engine.comms.gate(number, yes=yes, busy=busy))
        engine.layouts.rebuild()
        if engine.comms.lifted:
            engine.unprotected.trains_unevenly(engine.comms.lifted)

    def count(self) -> None:
        """Count the gate as passed, and do no more."""
        engine = self._engine
        self.is_owed = False
        engine.step.passed_gate(engine.step.gates_passed + 1)
        engine.journal.gates_passed = engine.step.gates_passed
        engine.phase(RankPhase.UPDATE)

    def _write(self, frame: FrameType) -> None:
        engine = self._engine
        assert engine.commit is not None
        own = OwnWork(engine.trees.reads)
        try:
            engine.gradients.at_gate()
            engine.writer.gate(engine.commit, frame)
            engine.costs.gate(own.took_s())
            engine.budget.spent(own.took_cpu_s())
        except Exception as error:
            if not engine.guard.takes(error):
                raise

    def _wait(self, position: StandingPosition) -> None:
        engine = self._engine
        engine.waiting(True)
        started_s = time.perf_counter()
        try:
            engine.journal.copies.wait()
            self._pass(engine.step.gates_passed + 1)
            self.is_through = True
            engine.costs.barrier(time.perf_counter() - started_s)
        except RuntimeError as error:
            if engine.commit is None:
                raise
            if engine.recovery.stand(position, error):
                engine.rewind()
        finally:
            engine.journal.wait(False)  # published with the phase that begins now

    def passed(self, number: int) -> None:
        engine = self._engine
        if engine.shadow is None:
            engine.records.begin_after_gate()
            engine.layouts.gate_passed()
        engine.step.passed_gate(number)
        self._early.drop()
        self._writes.drop()
        engine.replaced.drop()
        if engine.own is not None:
            engine.own.update_begins()
        engine.updates.updated.gate_passed()
        engine.updates.effects.gate_passed()
        engine.updates.overwritten.gate_passed()
        engine.updates.gradients.gate_passed()
        engine.gradients.passed()
        engine.journal.gates_passed = number
