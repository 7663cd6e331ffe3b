"""A spare that was given a rank: does the script's set-up, is led to the training loop, and becomes that rank there."""

from __future__ import annotations

import pickle
import sys
import time
from types import FrameType
from typing import TYPE_CHECKING, Any

from torchrelay.protocol.errors import (
    JournalError,
    MovedOnError,
    StateMismatchError,
    TorchrelayError,
    UnsupportedError,
)
from torchrelay.protocol.messages import (
    Assign,
    BytesDone,
    Commit,
    Interrupt,
    OrderFailed,
    Plan,
    Prepared,
    Rebuild,
    Rebuilt,
    Resumed,
    Serve,
    ShimOrder,
    Transferred,
    Verified,
)
from torchrelay.protocol.words.order_words import JOIN
from torchrelay.protocol.words.positions import JoinerAction
from torchrelay.shim.adapters import dynamo
from torchrelay.shim.adapters.parallel import ddp, ddp_layouts, fsdp2
from torchrelay.shim.capture import rng
from torchrelay.shim.capture.records.encode import decode
from torchrelay.shim.capture.values.kinds import Kind
from torchrelay.shim.comm import collective_records, pipelining
from torchrelay.shim.gradients.gradient_record import GradientRecord
from torchrelay.shim.instrument.left_loops import HeadsToPass
from torchrelay.shim.instrument.loop_tracker import Activation
from torchrelay.shim.join.catch_up import Tail
from torchrelay.shim.join.destination import Destination
from torchrelay.shim.join.fast_forward import Goal, WayIn
from torchrelay.shim.join.put_state import put_state
from torchrelay.shim.join.restore_at_boundary import arrive
from torchrelay.shim.journal import payload
from torchrelay.shim.journal.writer import script_frames
from torchrelay.shim.replicas.lender import Lender
from torchrelay.shim.script.guard import reason_of
from torchrelay.shim.step import boundary_proof
from torchrelay.shim.tensors.taint import Watch

if TYPE_CHECKING:
    from torchrelay.shim.set_up.staging import Staging
    from torchrelay.shim.step.engine import Engine


class Joiner:
    """Enters where its way in ends; from there on the engine is what the loops talk to."""

    def __init__(self, engine: Engine, assign: Assign, staging: Staging) -> None:
        self._engine, self._staging = engine, staging
        self.generation = assign.generation
        self.set_up: payload.SetUpJournal = payload.load(assign.set_up, payload.SetUpJournal)
        engine.records.answers = list(self.set_up.collectives)
        engine.saves.live = False
        engine.way_in = WayIn(engine, self.set_up, self)
        self._plan: Plan | None = None
        self._journal: payload.BoundaryJournal | None = None
        self._gate: payload.GateJournal | None = None
        self._trees = self.set_up.trees
        self._left: frozenset[int] = frozenset()
        """Nodes of the journal that are not carried."""
        self._arrived: Transferred | None = None
        self._destination: Destination | None = None
        self._lender = Lender(engine.link, engine.comms.address, engine.protection, engine.log)
        self.tail: Tail | None = None
        self._heads = HeadsToPass()
        self._is_receiving = False
        """What fails then may be the way that the tensors take."""
        self.entering = True
        """Until it is the rank: whatever fails before is no failure of the script."""

    # On the way in.

    def wait_for_plan(self) -> payload.BoundaryJournal:
        self._wait_for_plan()
        assert self._journal is not None
        return self._journal

    def newer_set_up(self) -> payload.SetUpJournal | None:
        """What the lost rank has recorded since this process began its set-up, if that is something else."""
        recorded = b"" if self._plan is None else self._plan.set_up
        return payload.load(recorded, payload.SetUpJournal) if recorded else None

    def check_answered(self) -> None:
        left = self._engine.records.answers
        if left:
            raise StateMismatchError(f"the lost rank called {left[0].name} before its loop; this process did not")

    def put(self, goal: Goal, nodes: list[bytes], innermost: FrameType, *, whole: bool) -> None:
        loaders, draw = (goal.journal.loaders, goal.journal.links[-1].draw) if whole else (None, None)
        put_state(self._engine, goal.trees, nodes, innermost, loaders, draw)

    # At the head.

    def enter(self, goal: Goal, activation: Activation) -> None:
        engine, journal, plan = self._engine, goal.journal, self._plan
        assert plan is not None
        engine.way_in, self._trees = None, goal.trees
        self._left = arrive(engine, goal, activation)
        if plan.action == JoinerAction.ENTER:
            self._take_state(activation.frame)
            self._staging.release()
            engine.records.answers = None
        else:
            assert self._gate is not None
            destination = self._new_destination(activation.frame)
            destination.make_gradients(self._gradients())
            destination.make_optimizer_state()
            engine.records.answers = list(self._gate.collectives)
            engine.shadow = self
        rng.restore(journal.rng)
        engine.tracker.listener = engine
        engine.draws.live = True
        engine.take_boundary(activation, journal.boundary)
        if plan.directory and plan.action == JoinerAction.ENTER and engine.commit is not None:
            engine.again.begin(
                engine.commit.state
            )  # whoever has saved these tensors may have been in the middle of the step

    def _take_state(self, innermost: FrameType) -> None:
        """Tensors from the donor, then the communicators of the new generation, then the go-ahead.

        Begins anew if another rank is lost meanwhile: what this process holds is still what the lost rank held at this head.
        """
        assert self._journal is not None
        destination = self._new_destination(innermost)
        while True:
            try:
                arrived = self._receive(destination)
                self._take_gradients(destination)
                boundary_proof.check_entered(self._engine, self._journal, self._trees, innermost, self._left)
                self._join(arrived)
            except (RuntimeError, OSError, TorchrelayError) as error:
                self._begin_anew(error)
            else:
                return

    def _begin_anew(self, error: Exception) -> None:
        """Raises `error` where it is this process's own, or where the others meet elsewhere now."""
        recovery = self._engine.recovery
        if not recovery.is_of_the_past(self.generation, error) or recovery.is_abandoned(self.generation):
            raise error
        before, self._plan = self._plan, None
        assert before is not None
        self.generation = recovery.announced
        plan = self._wait_for_plan()
        if (plan.action, plan.target, plan.place, plan.journal) != (
            before.action,
            before.target,
            before.place,
            before.journal,
        ):
            raise MovedOnError(f"the others meet at boundary {plan.target} now") from error

    def _new_destination(self, innermost: FrameType, *, behind: bool = False) -> Destination:
        assert self._journal is not None
        state = self._engine.writer.walk(script_frames(innermost))
        return Destination(state, self._journal.large, self._engine.saves.tensors(), behind=behind)

    def _receive(self, destination: Destination) -> Transferred:
        assert self._plan is not None
        self._inject("transfer")
        self._is_receiving = True
        stats = destination.receive(self._plan, self.generation, self._engine.protection, self._moved)
        self._is_receiving = False
        return stats.report(self.generation)

    def _moved(self, done_bytes: int, total_bytes: int) -> None:
        self._send(BytesDone(self.generation, done_bytes, total_bytes))

    def _gradients(self) -> GradientRecord:
        """Those of the lost rank at the boundary that its journal is of."""
        assert self._journal is not None
        return payload.load(self._journal.gradients, GradientRecord)  # type: ignore[no-any-return]

    def _take_gradients(self, destination: Destination) -> None:
        assert self._plan is not None
        record = self._gradients()
        unproven = destination.enter(record, own=bool(self._plan.kept or self._plan.directory))
        self._engine.gradients.take_over(record.learned, unproven)

    def _join(self, arrived: Transferred) -> None:
        engine = self._engine
        self._send(arrived)
        while True:
            order = self._next(self.generation)
            if isinstance(order, Rebuild):
                self._rebuild(order)
            elif isinstance(order, Commit):
                break
        self._lender.close()
        engine.comms.committed()
        engine.saves.entered(self.generation, has_communicators=self._plan is None or not self._plan.offline)
        if engine.keeper is not None and self._plan is not None:
            engine.keeper.entered(self.generation, self._plan.target, from_copy=bool(self._plan.kept))
        if self._plan is not None:
            engine.replicas.migrated(self._plan.target)
        engine.comms.now.number = self.generation
        engine.journal.generation = self.generation
        engine.first_step_due = True
        self.entering = False
        self._send(Resumed(self.generation, 0))

    def _rebuild(self, order: Rebuild) -> None:
        engine, started = self._engine, time.monotonic()
        plan = self._plan
        assert plan is not None
        self._inject("rebuild")
        fsdp2.reset()
        pipelining.reset(order.target)
        engine.comms.rebuild(
            order.generation, order.store_host, order.store_port, order.gate_secret, engine.recovery.is_over, joins=True
        )
        if engine.new_groups is not None:
            engine.new_groups.check_incomplete(engine.records.others or {})
        layouts = ddp_layouts.prepare_joiner(engine.wrapped, plan.ddp_layout, order.target)
        engine.layouts.adopt(order.target, layouts)
        self._send(Rebuilt(order.generation, time.monotonic() - started))
        self._inject("verify")
        engine.comms.verify(order.target)
        self._send(Verified(order.generation))

    # As a shadow of the step that the lost rank did not finish.

    def before_forward(self, wrapped: Any) -> None:
        """There are no peers yet: gradients stay here, and what came from rank 0 is in the journals."""
        if self.tail is None:
            ddp.without_peers(wrapped)  # each time anew: scripts set the flag themselves, step by step
        elif wrapped.will_sync_module_buffers() and not self.at_collective(None):
            raise StateMismatchError("a forward after the optimizer step takes buffers from rank 0, which is further")

    def at_gate(self, frame: FrameType, heads: int) -> None:
        assert self._gate is not None
        if heads != self._gate.heads:
            raise StateMismatchError(
                "the iteration ended here without the optimizer step that the lost rank had come to"
            )
        self.check_answered()
        assert self._journal is not None
        nodes = self._gate.on(self._journal)
        left = put_state(self._engine, self._trees, nodes, frame, at_gate=True)
        boundary_proof.check_at_gate(self._engine, nodes, self._trees, frame, left)
        rng.restore(self._gate.rng)

    def at_step_end(self) -> None:
        """After the last update of the iteration. Does nothing where that was another one before."""
        if self._arrived is not None:
            return
        engine, plan = self._engine, self._plan
        assert plan is not None
        assert self._gate is not None
        assert engine.commit is not None
        frame = engine.commit.activation.frame
        assert self._journal is not None
        flags = [node.content for node in decode(self._gate.on(self._journal)) if node.kind is Kind.DDP]
        wrappers = (node.obj for node in engine.commit.state.nodes if node.kind is Kind.DDP)
        for wrapped, content in zip(wrappers, flags):
            wrapped.__dict__.update(content)
        finished = collective_records.furthest(payload.load_logs(plan.collective_log))
        engine.records.after = []
        destination = self._new_destination(frame, behind=True)
        arrived = self._receive(destination)
        collective_records.give(finished, destination.results)
        if plan.offline or plan.donor_collectives >= 0:
            destination.put_gradients(self._gradients())  # else they are those of the next head
        engine.updates.late.note(engine.commit.state)
        self._arrived = arrived
        if plan.offline:
            if dynamo.compilations():
                raise StateMismatchError(
                    "others have reached the script's end, and compiled code could not be followed there"
                )
            self._join(arrived)
            engine.records.replay = finished
            self._be_the_rank()
            self._watch_to_the_end(destination)
        else:
            self._begin_tail(destination, finished)

    def _be_the_rank(self) -> None:
        self._engine.shadow, self._engine.records.answers = None, None
        self._staging.release()

    def _watch_to_the_end(self, destination: Destination) -> None:
        """The donor has done all that is left to do: what it wrote after its last step must not be written again."""
        gradients = destination.own_gradients()
        watch = Watch({**gradients, **destination.tensors()}, gradients.keys() - destination.gradients, strict=True)
        watch.__enter__()  # type: ignore[no-untyped-call]  # torch does not say its type

    # Through the rest of a step that the donor is through with.

    def _begin_tail(self, destination: Destination, finished: collective_records.ByGroup) -> None:
        assert self._plan is not None
        self._destination = destination
        self._engine.records.answers, self._engine.records.others = [], finished
        if self._plan.after:
            self._engine.records.own = collective_records.furthest([payload.load(self._plan.after, tuple)])
        self._staging.release()  # what the script says and writes from here on, the lost rank has not
        gradients = destination.own_gradients()
        at_head = self._plan.donor_collectives < 0
        missing = frozenset(gradients.keys() if at_head else gradients.keys() - destination.gradients)
        at_head &= not destination.has_before
        self.tail = Tail(destination.tensors(), self._plan.late, gradients, missing, at_head=at_head)

    def passes_over(self, place: str) -> bool:
        """Whether this head is one at which the others have left the loop. Raises StateMismatchError where it goes on here."""
        assert self._plan is not None
        over = self._heads.is_one(self._plan, place)
        if over:
            self._engine.left.place = place
        return over

    def at_next_head(self, activation: Activation) -> None:
        """The boundary that the others are at, if the donor was there."""
        assert self._plan is not None
        if self._plan.donor_collectives >= 0:
            raise StateMismatchError("the step ends before the collective that the donor stands in")
        own = self._engine.comms.group_names()
        for group, left in (self._engine.records.others or {}).items():
            if left and group in own:
                raise StateMismatchError(f"the others called {left[0].name} after the gate; this process did not")
        self._catch_up(activation.frame)

    def at_collective(self, group: str | None) -> bool:
        """Whether there are real peers from here on: those that the donor stands among, or others that wait in this one.

        `group`: None for a communication that is not recorded, so that nobody knows who has done it.
        """
        records, plan = self._engine.records, self._plan
        if self.tail is None or plan is None:
            return False
        at_donor = plan.donor_collectives == len(records.after)
        if not at_donor and (group is None or plan.late or (records.others or {}).get(group)):
            return False  # what the donor has written late belongs to its own place alone
        destination = self._destination
        assert destination is not None
        self._catch_up(sys._getframe(1))
        if not at_donor:  # the donor has written already whatever this step still writes past torch's counts
            gradients = destination.own_gradients()
            missing = gradients.keys() - destination.gradients
            self._engine.forbid(Watch({**gradients, **destination.tensors()}, missing, strict=True))
        return True

    def _catch_up(self, innermost: FrameType) -> None:
        assert self.tail is not None
        assert self._arrived is not None
        records = self._engine.records
        assert self._destination is not None
        assert self._plan is not None
        self.tail.leave()
        state = self._engine.writer.walk(script_frames(innermost))
        if self.tail.check(state) or self._destination.has_before:
            again = self._destination.again(state if self._plan.donor_collectives < 0 else None)
            again.receive(self._plan, self.generation, self._engine.protection, self._moved)
            if self._destination.has_before:
                self._destination = again
        record = self._gradients()
        unproven = self._destination.put_gradients(record)
        lacking = sorted(unproven.intersection(record.learned.kept))
        if lacking:
            raise StateMismatchError(f"the donor has no gradient of {lacking[0]}, which the next step adds to")
        self._engine.gradients.take_over(record.learned, unproven)
        self.tail, left, records.others = None, records.others, None
        self._join(self._arrived)
        records.replay = left or {}
        self._be_the_rank()

    # Orders.

    def _inject(self, phase: str) -> None:
        if self._engine.faults is not None:
            self._engine.faults.in_migration(phase, None if self._plan is None else self._plan.target + 1)

    def _wait_for_plan(self) -> Plan:
        self._inject("prepare")
        self._send_prepared()
        while self._plan is None:
            order = self._engine.recovery.raw_order()
            if isinstance(order, Interrupt):
                self.generation = max(self.generation, order.generation)
                self._lender.close()
                self._send_prepared()
            elif isinstance(order, Serve) and order.generation == self.generation:
                self._lender.serve(order)
            elif isinstance(order, Plan) and order.generation == self.generation:
                self._plan = order
                self._journal = payload.load(order.journal, payload.BoundaryJournal)
                if order.place and order.action == JoinerAction.ENTER and order.place != self._journal.place():
                    raise StateMismatchError(
                        f"the others meet at boundary {order.target} in another loop than the one where the lost rank was"
                    )
                if self._journal.iterators:
                    raise StateMismatchError(f"{', '.join(self._journal.iterators)}: what it yields next is not known")
                if order.action == JoinerAction.SHADOW:
                    self._gate = payload.load(order.gate_journal, payload.GateJournal)
                    if self._gate.lost:
                        raise StateMismatchError(
                            f"{', '.join(self._gate.lost)}: made by the lost rank's step, read after it, and not in its journal"
                        )
        return self._plan

    def _send_prepared(self) -> None:
        host, port = self._engine.recovery.store(self.generation)
        self._send(Prepared(self.generation, host, port))

    def _next(self, generation: int) -> ShimOrder:
        while True:
            order = self._engine.recovery.raw_order()
            if isinstance(order, Interrupt) and order.generation > generation:
                raise MovedOnError(f"generation {order.generation} was announced while entering {generation}")
            if getattr(order, "generation", generation) == generation:
                return order

    def _send(self, report: Any) -> None:
        self._engine.link.send(report)

    def failed(self, error: BaseException) -> None:
        """Tells the controller that another spare is needed; what the set-up printed is shown, for whoever looks for the reason."""
        self._staging.show()
        self._send(
            OrderFailed(self.generation, JOIN, reason_of(error), lasting=_comes_again(error) and not self._is_receiving)
        )


def _comes_again(error: BaseException) -> bool:
    """Whether any other process would meet it: it is of the script or the journal, not of peers or of this moment."""
    of_ours = (StateMismatchError, UnsupportedError, JournalError)  # not of what a peer has sent
    return isinstance(error, (*of_ours, ImportError, SyntaxError, pickle.PicklingError))
