"""A joiner goes through the step that the lost rank did not finish, as its shadow, until it has caught up with the others."""

from __future__ import annotations

import sys
from types import FrameType
from typing import TYPE_CHECKING, Any

import torch

from torchrelay.protocol.errors import StateMismatchError
from torchrelay.protocol.messages import Transferred
from torchrelay.shim.adapters import dynamo
from torchrelay.shim.adapters.parallel import ddp
from torchrelay.shim.capture import rng
from torchrelay.shim.capture.records.encode import decode
from torchrelay.shim.capture.values.kinds import Kind
from torchrelay.shim.comm import collective_records
from torchrelay.shim.instrument.activation import Activation
from torchrelay.shim.join.catch_up import CatchUp
from torchrelay.shim.join.destination import Destination
from torchrelay.shim.join.joiner_dialogue import Dialogue
from torchrelay.shim.join.own_update import OwnUpdate
from torchrelay.shim.join.put_state import put_state
from torchrelay.shim.join.recorded import RecordedPlace
from torchrelay.shim.journal import payload
from torchrelay.shim.journal.script_modules import script_frames
from torchrelay.shim.step import boundary_proof
from torchrelay.shim.step.left_loops import HeadsToPass
from torchrelay.shim.step.step_state import StepPosition
from torchrelay.shim.tensors.inference import outside_inference
from torchrelay.shim.tensors.taint import MADE, Watch

if TYPE_CHECKING:
    from torchrelay.shim.set_up.staging import Staging
    from torchrelay.shim.step.engine import Engine


class ShadowStep:
    """Goes without peers up to the gate, and behind it up to where the donor stands. `trees`: of the loop's head, as in Goal."""

    def __init__(self, engine: Engine, dialogue: Dialogue, trees: tuple[Any, ...], staging: Staging) -> None:
        assert dialogue.plan is not None
        assert dialogue.journal is not None
        assert dialogue.gate is not None
        self._engine = engine
        self._dialogue = dialogue
        self._trees = trees
        self._staging = staging
        self._plan = dialogue.plan
        self._journal = dialogue.journal
        self._gate = dialogue.gate
        self._late = {path: times for path, times in self._plan.late.items() if path not in self._plan.carried}
        engine.records.answer_with(self._gate.collectives)
        self._arrived: Transferred | None = None
        self._destination: Destination | None = None
        self.tail: CatchUp | None = None
        self._own_update: OwnUpdate | None = None
        self._unread: dict[str, torch.Tensor] = {}
        """What the lost rank's step had made for itself and is not known here, by path."""
        self._finished: collective_records.ByGroup = {}
        """What the member that got furthest has done since the gate."""
        self._heads = HeadsToPass()

    # Up to the gate, and in place of the update.

    def before_forward(self, wrapped: Any) -> None:
        """Prepare a forward without peers: gradients stay here, and what came from rank 0 is in the journals."""
        if self.tail is None:
            ddp.without_peers(wrapped)  # each time anew: scripts set the flag themselves, step by step
        elif wrapped.will_sync_module_buffers() and not self.at_collective(None):
            raise StateMismatchError("a forward after the optimizer step takes buffers from rank 0, which is further")

    def at_gate(self, frame: FrameType, heads: int) -> None:
        self._engine.trees.data_origins.fresh_is_made = True  # by the step that was just done
        if heads != self._gate.heads:
            raise StateMismatchError(
                "the iteration ended here without the optimizer step that the lost rank had come to"
            )
        check_answered(self._engine)
        nodes = self._gate.on(self._journal)
        rebuild = put_state(self._engine, self._trees, RecordedPlace(nodes), frame, at_gate=True)
        boundary_proof.check_at_gate(self._engine, nodes, self._trees, frame, rebuild.left)
        there = {f"{MADE}{path}": rebuild.objects[number] for path, number in self._gate.unread}
        self._unread = {path: tensor for path, tensor in there.items() if isinstance(tensor, torch.Tensor)}
        rng.restore(self._gate.rng)
        self._answer_behind_gate()
        self._own_update = OwnUpdate(self._engine.writer.walk(script_frames(frame)))

    def _answer_behind_gate(self) -> None:
        """Answer what is called from here on, between two updates too, by what others are through with."""
        own = payload.load(self._plan.after, tuple) if self._plan.after else ()
        self._finished = collective_records.furthest(payload.load_logs(self._plan.collective_log))
        records = self._engine.records
        records.begin_after_gate()
        records.answer_from_others(collective_records.without(self._finished, ()), own)

    def at_step_end(self) -> None:
        """Take the donor's tensors behind the last update of the iteration. Do nothing where an earlier update was the last one."""
        if self._arrived is not None:
            return
        engine = self._engine
        plan = self._plan
        assert engine.commit is not None
        frame = engine.commit.activation.frame
        own_update = self._own_update
        assert own_update is not None  # a step ends behind its gate
        own_update.done()
        updated = engine.writer.walk(script_frames(sys._getframe(1)))
        flags = [node.content for node in decode(self._gate.on(self._journal)) if node.kind is Kind.DDP]
        wrappers = (node.obj for node in engine.commit.state.nodes if node.kind is Kind.DDP)
        for wrapped, content in zip(wrappers, flags):
            wrapped.__dict__.update(content)
        destination = self._dialogue.destination(frame, behind=True)
        arrived = self._dialogue.receive(destination)
        destination.take_updated()
        changed_before = engine.updates.effects.changed_before
        received = destination.received | destination.carried().keys()
        given = destination.effects()
        own_update.put_right(updated, given, changed_before, received, is_own=bool(destination.copied()))
        destination.put_copied_gradients()
        self._late = {path: times for path, times in self._late.items() if path not in destination.carried()}
        collective_records.give(self._finished, destination.results)
        if plan.offline or plan.donor_collectives >= 0:
            destination.put_gradients(self._dialogue.gradients())  # else they are those of the next head
        engine.updates.note_late(engine.commit.state)
        self._arrived = arrived
        if plan.offline:
            if dynamo.compilations():
                raise StateMismatchError(
                    "others have reached the script's end, and compiled code could not be followed there"
                )
            self._dialogue.join(arrived)
            self._be_the_rank(engine.records.others_left())
            self._watch_to_the_end(destination)
        else:
            self._begin_tail(destination)

    def _be_the_rank(self, left: collective_records.ByGroup) -> None:
        self._engine.be_the_rank(left)
        self._staging.release()

    def _watch_to_the_end(self, destination: Destination) -> None:
        """Watch that nothing is written again which the donor wrote after its last step: it has done all that is left to do."""
        self._watch_on(destination).__enter__()

    def _watch_on(self, destination: Destination) -> Watch:
        """Return a watch on what may not be written to, or not be read, once this process is the rank."""
        own = {**destination.own_gradients(), **self._unread}
        return Watch({**own, **destination.tensors()}, own.keys() - destination.known_gradients(), strict=True)

    # Through the rest of a step that the donor is through with.

    def _begin_tail(self, destination: Destination) -> None:
        self._destination = destination
        self._staging.release()  # what the script says and writes from here on, the lost rank has not
        as_updated = destination.take_updated_gradients()
        gradients = destination.own_gradients()
        at_head = self._plan.donor_collectives < 0
        known = destination.known_gradients()
        copied = known - destination.gradients.keys()
        missing = frozenset(gradients.keys() if at_head else gradients.keys() - known) - as_updated - copied
        self.tail = CatchUp(
            destination.tensors(),
            self._late,
            {**gradients, **self._unread},
            missing.union(self._unread),
            at_head=at_head,
            replaced=destination.has_before,
            carried=destination.carried(),
        )

    def passes_over(self, place: str) -> bool:
        """Return whether this head is one at which the others have left the loop.

        Raises StateMismatchError where it goes on here.
        """
        over = self._heads.is_one(self._plan, place)
        if over:
            self._engine.left.place = place
        return over

    def at_next_head(self, activation: Activation) -> None:
        """Catch up at the boundary that the others are at, if the donor was there."""
        if self._plan.donor_collectives >= 0:
            raise StateMismatchError("the step ends before the collective that the donor stands in")
        own = self._engine.comms.group_names()
        for group, left in (self._engine.records.others or {}).items():
            if left and group in own:
                raise StateMismatchError(f"the others called {left[0].name} after the gate; this process did not")
        self._catch_up(activation.frame)

    def at_collective(self, group: str | None) -> bool:
        """Return whether there are real peers from here on: those that the donor stands among, or others that wait in this one.

        `group`: None for a communication that is not recorded, so that it is not known which ranks have done it.
        """
        records = self._engine.records
        plan = self._plan
        at_donor = plan.donor_collectives == len(records.after)
        if at_donor and self._engine.step.position is StepPosition.AFTER and not self._engine.updates.within_a_step():
            self.at_step_end()  # the donor stands between two updates: what it has is all that there is yet
        if self.tail is None:
            return False
        if not at_donor and (group is None or self._late or (records.others or {}).get(group)):
            return False  # what the donor has written late belongs to its own place alone
        destination = self._destination
        assert destination is not None
        with outside_inference():
            self._catch_up(sys._getframe(1))
        if not at_donor:  # the donor has written already whatever this step still writes past torch's counts
            self._engine.collective_side.forbid(self._watch_on(destination))
        return True

    def _catch_up(self, innermost: FrameType) -> None:
        assert self.tail is not None
        assert self._arrived is not None
        assert self._destination is not None
        dialogue = self._dialogue
        self.tail.leave()
        state = self._engine.writer.walk(script_frames(innermost))
        is_renamed = self._destination.has_before and self._destination.check_names(state)
        in_the_midst = self._plan.donor_collectives >= 0
        is_changed = self.tail.check(state, self._destination.tensors() if in_the_midst else None)
        if is_changed or self._destination.has_before:
            again = self._destination.again(None if in_the_midst else state)
            again.receive(self._plan, dialogue.generation, self._engine.protection, dialogue.moved)
            if self._destination.has_before:
                self._destination = again
        record = dialogue.gradients()
        unproven = self._destination.put_gradients(record)
        lacking = sorted(unproven.intersection(record.learned.kept))
        if lacking:
            raise StateMismatchError(f"the donor has no gradient of {lacking[0]}, which the next step adds to")
        if is_renamed and unproven and record.learned.kept:  # what is known of gradients has the names of before
            raise StateMismatchError(
                f"the donor has no gradient of {min(unproven)}, and parameters are called otherwise by now"
            )
        self._engine.gradients.take_over(record.learned, unproven)
        left = self._engine.records.others_left()
        self.tail = None
        dialogue.join(self._arrived)
        self._be_the_rank(left)


def check_answered(engine: Engine) -> None:
    """Raise StateMismatchError where the lost rank had called more collectives by now than this process has."""
    left = engine.records.answers
    if left:
        raise StateMismatchError(f"the lost rank called {left[0].name} before its loop; this process did not")
