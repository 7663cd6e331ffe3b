"""The optimizer's steps of a rank: which of them have the gate in front, which come before it, and what follows them."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from types import FrameType
from typing import TYPE_CHECKING, Any

import torch

from torchrelay.protocol.errors import StateMismatchError, UnsupportedError
from torchrelay.protocol.words.positions import RankPhase
from torchrelay.shim.capture.state.host_state import HostState
from torchrelay.shim.instrument.activation import Activation
from torchrelay.shim.journal.script_modules import script_frames
from torchrelay.shim.step.costs import OwnWork
from torchrelay.shim.step.step_state import StepPosition
from torchrelay.shim.step.updates.closure_steps import WholeSteps
from torchrelay.shim.step.updates.early_updates import EarlyUpdates
from torchrelay.shim.step.updates.early_writes import EarlyWrites
from torchrelay.shim.step.updates.late_reads import LateReads
from torchrelay.shim.step.updates.late_writes import LateWrites
from torchrelay.shim.step.updates.optimizer_states import OptimizerStates
from torchrelay.shim.step.updates.overwritten_weights import OverwrittenWeights
from torchrelay.shim.step.updates.steps_in_draws import StepsInDraws
from torchrelay.shim.step.updates.update_effects import UpdateEffects, Within
from torchrelay.shim.step.updates.update_gate import UpdateGate
from torchrelay.shim.step.updates.updated_gradients import UpdatedGradients
from torchrelay.shim.step.updates.updated_tensors import UpdatedTensors

if TYPE_CHECKING:
    from torchrelay.shim.step.engine import Engine


_MOST_WITHOUT_UPDATE = 1024
"""So often gradients are computed before the first update at most: a large model's step may have some hundred micro-batches."""


class OptimizerUpdates:
    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self.early = EarlyUpdates()
        self.late = LateWrites()
        self.whole = WholeSteps(engine)
        self.in_draws = StepsInDraws(engine)
        self.states = OptimizerStates()
        self.effects = UpdateEffects()
        self.writes = EarlyWrites(self.states)
        self.updated = UpdatedTensors()
        self.gradients = UpdatedGradients()
        self.reads = LateReads(engine)
        self.overwritten = OverwrittenWeights(engine.guard.tell)
        self._computed: int | None = 0
        """How often gradients were computed before the first update; None once there was one."""
        self._done = 0
        """In this iteration."""
        self._depth = 0
        """Of optimizer steps within optimizer steps, as wrappers make them."""
        self._stepping: torch.optim.Optimizer | None = None
        self._updating_early = False
        self._training_thread = threading.main_thread().ident
        self._site = ""
        """The training loop that an unprotected rank was in when it gave up: its gates stay where the others have theirs."""
        self._turns = 0
        """Of an unprotected rank: how many updates of an iteration come before the gate, as the others learn it, too."""
        self.gate = UpdateGate(engine, self.early, self.writes)

    def begin_iteration(self) -> None:
        self._done = 0
        self._depth = 0
        self.whole.forget()
        self.reads.drop()
        self.updated.begin_step()
        self.overwritten.look_no_more()

    def gradients_begin(self) -> None:
        """Note that gradients are about to be computed.

        Without an update that is seen nothing is ever protected, which has to be said.
        """
        self.in_draws.gradients_begin()
        if self._computed is None or not self._engine.capturing:
            return
        self._computed += 1
        if self._computed > _MOST_WITHOUT_UPDATE:
            why = "gradients were computed 1,024 times, and no optimizer of torch's was stepped: steps of others are not seen"
            self._engine.give_up(UnsupportedError(why))

    def within_a_step(self) -> bool:
        return self._depth > 0

    def collective_begins(self) -> None:
        """Note a collective on the training thread.

        From the next iteration on the gate comes behind an optimizer's step that it is in.
        """
        if self._depth > 0 and self._stepping is not None:
            self.whole.collective_within(self._stepping)
            commit = self._engine.commit
            if commit is not None and self.early.learn(commit.activation.site, self._done, together=True):
                self._engine.reporter.in_turn()

    def summed_up(self, tensors: list[torch.Tensor]) -> None:
        """Note that a collective has summed up into `tensors`, which torch has not counted as a write."""
        self.writes.summed_up(tensors)
        self._engine.again.summed_up(tensors)

    def have_begun(self) -> bool:
        """Return whether an update was begun in this iteration, such as the first of two in turn."""
        return self._done > 0

    def all_done(self) -> bool:
        """Return whether an iteration of this loop has no further update to make, as far as that is known."""
        commit = self._engine.commit
        return commit is None or self._done > self.early.last(commit.activation.site)

    def take_back_early(self, target: int) -> None:
        """Take back what the step has done before its gate, if all ranks meet at the boundary that it began at.

        Raises StateMismatchError.
        """
        commit = self._engine.commit
        if commit is None or target != commit.boundary:
            return
        copied_at = self.early.put_back(commit.state) if self.early.pending else {}
        self.states.put_back(copied_at | self.writes.put_back(commit.state))

    def late_now(self) -> dict[str, int]:
        """Return what was written between the last optimizer step and the place that this rank's tensors belong to.

        Tensors of which there is a copy from before are left out.
        """
        commit = self._engine.commit
        if commit is None:
            return {}
        at_boundary = self._engine.step.gates_passed == commit.boundary
        if at_boundary and self._engine.replaced.late is not None:
            return self._engine.replaced.late
        late = self.late.until(commit.state if at_boundary else commit.state.as_it_is_now())
        late |= self.states.late(commit.state, at_head=at_boundary)
        copied = self.as_updated()
        return {path: times for path, times in late.items() if path not in copied}

    def note_late(self, state: HostState) -> None:
        """Note that an update is made: what is written from here on is written late."""
        self.late.note(state)
        self.states.note(state)

    def as_updated(self) -> dict[str, torch.Tensor]:
        """Return copies of what tensors held after the latest update and may hold no more, by path."""
        return self.updated.tensors() | self.overwritten.tensors()

    # In front of the update.

    def before_step(self, frame: FrameType, optimizer: torch.optim.Optimizer | None, *, whole: bool = False) -> None:
        """Prepare for an optimizer's step, with the gate in front where it belongs.

        `whole`: what the step writes is written and kept.
        """
        engine = self._engine
        if not engine.tracker.live or threading.get_ident() != self._training_thread:
            return
        self._computed = None
        passed = engine.step.gates_passed
        depth = self._depth
        self.gate.is_through = False
        try:
            self._before_step(frame, optimizer, whole=whole)
        except Exception as error:
            if not engine.guard.takes(error):
                raise
            if self.gate.is_through and engine.step.gates_passed == passed:
                self.gate.count()  # the others have gone on: nobody is at this gate any more
            elif engine.step.gates_passed == passed and engine.step.is_before_update:
                # The others wait for this rank at their gate. Without protection there is less to do on the way to it.
                engine.step.left_gate()
                self._depth = depth
                try:
                    self._before_step(frame, optimizer, whole=whole)
                except Exception as again:
                    if not engine.guard.takes(again):
                        raise
                    self._gate_unprotected()

    def _before_step(self, frame: FrameType, optimizer: torch.optim.Optimizer | None, *, whole: bool) -> None:
        engine = self._engine
        self._depth += 1
        if self._depth > 1 or self.whole.open:
            return
        self._stepping = optimizer
        running = engine.tracker.around_step(frame)
        self.in_draws.at_step(frame, running)
        if engine.step.position is StepPosition.SET_UP:
            self._in_set_up(frame, running)
        if engine.step.position not in (StepPosition.BODY, StepPosition.AFTER):
            return
        self._note_gradients(optimizer)
        if self._is_behind_its_loop(frame, running):
            engine.step.began_behind_loop()
            engine.reporter.step_behind_loop(frame)
        elif self._has_another_gate(optimizer, running, whole=whole):
            return
        if engine.step.position is StepPosition.AFTER:
            if engine.own is not None:
                engine.own.update_begins()
            return
        if not running and not engine.step.behind:
            engine.reporter.step_in_no_loop(frame)
            return
        if not engine.protects_this_step():
            return
        engine.again.leave()
        if engine.capturing:
            self.gate.pass_protected(frame)
        else:
            self._gate_unprotected()
        self._steps_in(running)

    def _note_gradients(self, optimizer: torch.optim.Optimizer | None) -> None:
        engine = self._engine
        if not engine.capturing and engine.step.gradients_open:
            self._turns = max(self._turns, self._done)
        if optimizer is not None and engine.capturing and engine.shadow is None:
            engine.gradients.fates.used_by(optimizer)

    def _in_set_up(self, frame: FrameType, running: list[Activation]) -> None:
        """See to a step before the first boundary."""
        engine = self._engine
        if engine.way_in is not None:
            engine.way_in.at_step(frame)
        elif engine.capturing and running and running[-1].computes:
            # Set-up was recorded too long for a joiner to repeat it.
            engine.give_up(UnsupportedError("training has begun in a loop whose beginning was not captured"))
        engine.reporter.step_in_set_up(frame)

    def _has_another_gate(
        self, optimizer: torch.optim.Optimizer | None, running: list[Activation], *, whole: bool
    ) -> bool:
        """Return whether the step is of another loop than the latest boundary, or an update before the gate. See to it then."""
        engine = self._engine
        if engine.commit is None or not running:
            return False
        if engine.commit.activation not in running:
            self._step_elsewhere(running)
            return True
        site = engine.commit.activation.site
        together = engine.step.gradients_open or (optimizer is not None and self.whole.communicates(optimizer))
        if self.early.learn(site, self._done, together=together):
            engine.reporter.in_turn()
        if engine.step.is_in_body and self._done < self.early.before_gate(site):
            self._update_early(None if whole else optimizer, running)
            return True
        return False

    def _gate_unprotected(self) -> None:
        if self._done < max(self._turns, self.early.before_gate(self._site)):
            self._updating_early = self.gate.is_owed = True
        else:
            self.gate.pass_unprotected(-1)

    def unprotected_in(self, site: str) -> None:
        """Note that the rank gives up in this training loop, and drop all copies."""
        self.gate.is_owed = self.early.pending and not self.gate.is_through
        self._site = site
        self.early.drop()
        self.writes.drop()
        self.updated.look_no_more()
        self.reads.drop()
        self.overwritten.gate_passed()
        self.effects.drop()
        self.states.drop()

    def look_no_more(self) -> None:
        """Stop looking, since the loop is over: what steps write past torch's counts was seen before, or is not seen."""
        self.writes.look_no_more()
        self.updated.look_no_more()
        self.reads.drop()

    def _update_early(self, optimizer: Any, running: list[Activation]) -> None:
        """Make an update before the gate: another update, behind a backward, comes in this iteration, and the gate is there."""
        engine = self._engine
        engine.training.step_stack = running
        self._updating_early = True
        engine.step.updated_early()
        if engine.shadow is None and optimizer is not None:
            self.early.keep(optimizer)
            engine.again.ignore(self.early.tensors())

    def keep_whole(self, frame: FrameType, optimizer: torch.optim.Optimizer) -> None:
        """Keep what a step writes that is taken back as a whole, should a rank be lost before the gate behind it."""
        engine = self._engine
        if not engine.tracker.live or not engine.capturing:
            return
        in_shadow = engine.shadow is not None and engine.step.is_in_body
        if in_shadow or (engine.way_in is not None and engine.way_in.before_gate()):
            self.whole.begin_without(optimizer)
            return
        if not engine.step.is_in_body or engine.shadow is not None:
            return
        if engine.commit is not None and engine.commit.activation in engine.tracker.running(frame):
            self.early.keep(optimizer)
            engine.again.ignore(self.early.tensors())

    def _is_behind_its_loop(self, frame: FrameType, running: list[Activation]) -> bool:
        """Return whether the step belongs to the latest boundary although that loop is over: gradients were left over from it.

        Such a step has a gate like any other, and what follows it is carried. Before that gate no rank can go back to the boundary.
        """
        engine = self._engine
        in_body = engine.step.is_in_body and engine.step.gradients_open
        if engine.commit is None or not in_body or self._done > 0:
            return False
        loop = engine.commit.activation
        return loop not in running and loop.around is (running[-1] if running else None) and loop.is_run_by(frame)

    def _steps_in(self, running: list[Activation]) -> None:
        """Note that a gate was passed in all of these loops."""
        self._engine.training.step_stack = running
        for activation in running:
            activation.steps += 1

    def _step_elsewhere(self, running: list[Activation]) -> None:
        """Step outside of the loop that the boundaries are in: no process can come in here, until this loop comes round."""
        engine = self._engine
        assert engine.commit is not None
        if engine.shadow is not None:
            raise StateMismatchError("a further training loop begins where there are no peers yet")
        if engine.step.astray and engine.training.step_stack[-1] in running:
            return  # another one in the same iteration
        engine.reporter.step_in_another_loop(engine.commit, running[-1].site)
        engine.step.went_astray()
        self._done = 0
        self._steps_in(running)
        engine.again.leave()
        engine.waiting(True)
        try:
            self.gate.pass_unprotected(engine.step.gates_passed + 1)
        except RuntimeError as error:
            engine.interrupted(error)
            raise
        finally:
            engine.waiting(False)
        engine.records.begin_after_gate()

    # Behind the update.

    def after_step(self) -> None:
        engine = self._engine
        if not engine.tracker.live or threading.get_ident() != self._training_thread:
            return
        try:
            self._after_step()
        except Exception as error:
            if not engine.guard.takes(error):
                raise

    def _after_step(self) -> None:
        engine = self._engine
        self._depth = max(self._depth - 1, 0)
        self._stepping = self._stepping if self._depth > 0 else None
        if self._depth > 0 or not (engine.step.is_past_gate or self._updating_early):
            return
        self._updating_early = False
        self._done += 1
        if self._done > 1:
            engine.tracker.watch_inside = True
        if engine.step.position is StepPosition.UPDATE:
            engine.step.updated()
            engine.phase(RankPhase.AFTER)
            self._updated()
            engine.inject("after-step")
        elif engine.step.position is StepPosition.AFTER:
            self._updated()

    def _updated(self) -> None:
        """Note an update behind the gate. If it was the last one, the tensors of the next boundary are there."""
        engine = self._engine
        if engine.shadow is not None:
            if self.all_done():
                engine.shadow.at_step_end()
        elif engine.commit is not None and not engine.step.astray:
            self.note_late(engine.commit.state)
            self.updated.note(engine.commit.state)
            self.overwritten.note(engine.commit.state)
            self.gradients.note(engine.commit.state)
            self._note_effects(engine.commit.state)
            if self.all_done():
                if engine.own is not None:
                    engine.own.behind_update(engine.commit.state, self._walk_behind(engine.commit.state))
                self.reads.updated()

    def _walk_behind(self, state: HostState) -> Callable[[], HostState]:
        writer = self._engine.writer
        return lambda: writer.walk(script_frames(sys._getframe(1)), state, at_gate=True)

    def _note_effects(self, state: HostState) -> None:
        engine = self._engine
        own = OwnWork(engine.trees.reads)

        def walk(within: Within) -> HostState:
            frames = script_frames(sys._getframe(1)) if within is None else []
            return engine.writer.walk(frames, state, at_gate=True, within=within)

        if self.effects.note(state, walk, is_last=self.all_done()):
            engine.costs.gate(own.took_s())
            engine.budget.spent(own.took_cpu_s())
