"""What a joiner hears from the controller and from donors, and what it says, until it is a rank of the new generation."""

from __future__ import annotations

import pickle
from types import FrameType
from typing import TYPE_CHECKING, Any

from torchrelay.protocol.errors import JournalError, MovedOnError, StateMismatchError, UnsupportedError
from torchrelay.protocol.messages import (
    BytesDone,
    Commit,
    Interrupt,
    OrderFailed,
    Plan,
    Prepared,
    Rebuild,
    Resumed,
    Serve,
    SwitchOrder,
    Transferred,
)
from torchrelay.protocol.words.order_words import JOIN
from torchrelay.protocol.words.positions import JoinerAction
from torchrelay.shim.adapters.parallel import ddp_layouts
from torchrelay.shim.capture.models import device
from torchrelay.shim.gradients.gradient_record import GradientRecord
from torchrelay.shim.join.destination import Destination
from torchrelay.shim.journal import payload
from torchrelay.shim.journal.script_modules import script_frames
from torchrelay.shim.recovery import new_generation
from torchrelay.shim.replicas.first_writes import paths_of
from torchrelay.shim.replicas.lender import CopyServer
from torchrelay.shim.replicas.own_tensor_copies import OwnCopy
from torchrelay.shim.script.guard import reason_of

if TYPE_CHECKING:
    from torchrelay.shim.step.engine import Engine


class Dialogue:
    def __init__(self, engine: Engine, generation: int) -> None:
        self._engine = engine
        self.generation = generation
        self.plan: Plan | None = None
        self.journal: payload.BoundaryJournal | None = None
        """Of the boundary where the lost rank's state is known."""
        self.gate: payload.GateJournal | None = None
        """Of the gate behind it, where the others have passed that."""
        self._lender = CopyServer(engine.link, engine.comms.address, engine.protection, engine.log)
        self._is_receiving = False
        """What fails then may be the way that the tensors take."""
        self.is_over = False
        """Whether this process is the rank."""

    # The plan.

    def wait_for_plan(self) -> Plan:
        self._inject("prepare")
        self._send_prepared()
        while self.plan is None:
            order = self._engine.recovery.raw_order()
            if isinstance(order, Interrupt):
                self.generation = max(self.generation, order.generation)
                self._lender.close()
                self._send_prepared()
            elif isinstance(order, Serve) and order.generation == self.generation:
                self._lender.serve(order)
            elif isinstance(order, Plan) and order.generation == self.generation:
                self._take_plan(order)
        return self.plan

    def _take_plan(self, plan: Plan) -> None:
        self.plan = plan
        self.journal = payload.load(plan.journal, payload.BoundaryJournal)
        if plan.place and plan.action == JoinerAction.ENTER and plan.place != self.journal.place():
            raise StateMismatchError(
                f"the others meet at boundary {plan.target} in another loop than the one where the lost rank was"
            )
        if self.journal.iterators:
            raise StateMismatchError(f"{', '.join(self.journal.iterators)}: what it yields next is not known")
        if plan.action == JoinerAction.SHADOW:
            self.gate = payload.load(plan.gate_journal, payload.GateJournal)
            if self.gate.lost:
                raise StateMismatchError(
                    f"{', '.join(self.gate.lost)}: made by the lost rank's step, read after it, and not in its journal"
                )
        self._check_proven(plan, self.journal)

    def _check_proven(self, plan: Plan, journal: payload.BoundaryJournal) -> None:
        """Raise StateMismatchError where a donor holds alike what the lost rank has first written since they were compared."""
        if plan.compared < 0 or plan.kept or plan.directory:
            return
        unproven = dict((*journal.unproven, *(self.gate.unproven if self.gate is not None else ())))
        first = {path for path, at in unproven.items() if at > plan.compared} | (
            plan.late.keys() & paths_of(journal.quiet)
        )
        lacking = sorted(first.difference(plan.carried))
        if lacking:
            raise StateMismatchError(
                f"{lacking[0]}: the lost rank has made it, or written to it for the first time, since ranks compared what they hold"
            )

    def begin_anew(self, error: Exception) -> None:
        """Begin anew in a newer generation.

        Raises `error` where it is this process's own, or where the others meet elsewhere now.
        """
        recovery = self._engine.recovery
        if not recovery.is_of_the_past(self.generation, error) or recovery.is_abandoned(self.generation):
            raise error
        before = self.plan
        self.plan = None
        assert before is not None
        self.generation = recovery.announced
        plan = self.wait_for_plan()
        if (plan.action, plan.target, plan.place, plan.journal) != (
            before.action,
            before.target,
            before.place,
            before.journal,
        ):
            raise MovedOnError(f"the others meet at boundary {plan.target} now") from error

    def _send_prepared(self) -> None:
        host, port = self._engine.recovery.store(self.generation)
        self._send(Prepared(self.generation, host, port))

    # What donors give.

    def destination(self, innermost: FrameType, *, behind: bool = False) -> Destination:
        """Return where tensors arrive: what the script holds in the frames up to `innermost`. `behind`: as in Destination.

        Raises JournalError, StateMismatchError where the lost rank has not left the copy that the plan counts on.
        """
        assert self.journal is not None
        state = self._engine.writer.walk(script_frames(innermost))
        copy = self._own_copy(behind=behind)
        saves = self._engine.saves.tensors()
        lacking = () if self.plan is None else self.plan.lacking
        compared = () if self.plan is None else self.gradients().compared_by(self.plan.compared)
        return Destination(
            state, self.journal.large, saves, behind=behind, copy=copy, lacking=lacking, compared=compared
        )

    def _own_copy(self, *, behind: bool) -> OwnCopy | None:
        """Return what the lost rank has copied of its own tensors for where tensors arrive; None where that is not needed."""
        plan = self.plan
        own = self._engine.own
        assert plan is not None
        assert self.journal is not None
        if not plan.carried or (plan.action != JoinerAction.ENTER and not behind):
            return None
        if own is None:
            raise StateMismatchError("this process takes no copies of a rank's own tensors")
        copy = own.left(plan.target if behind else self.journal.boundary, behind_update=behind)
        if missing := set(plan.carried) - copy.views.keys():
            raise StateMismatchError(f"the lost rank has not copied {min(missing)} in this step")
        return copy

    def receive(self, destination: Destination) -> Transferred:
        assert self.plan is not None
        self._inject("transfer")
        self._is_receiving = True
        stats = destination.receive(self.plan, self.generation, self._engine.protection, self.moved)
        self._is_receiving = False
        self._take_carried(destination)
        return stats.report(self.generation)

    def _take_carried(self, destination: Destination) -> None:
        """Fill what is carried from the lost rank's own copy, where the plan says so. Raises StateMismatchError."""
        plan = self.plan
        own = self._engine.own
        assert plan is not None
        assert self.journal is not None
        if destination.put_copy():
            assert own is not None
            copied = [p for p in destination.copied() if p in plan.carried or not p.startswith(device.GRADIENT)]
            own.go_on(copied, self.journal.boundary, from_head=plan.action == JoinerAction.ENTER)
        elif own is not None:
            own.go_on_as_before(self.journal.boundary)

    def moved(self, done_bytes: int, total_bytes: int) -> None:
        self._send(BytesDone(self.generation, done_bytes, total_bytes))

    def gradients(self) -> GradientRecord:
        """Return the gradients of the lost rank at the boundary that its journal is of."""
        assert self.journal is not None
        return payload.load(self.journal.gradients, GradientRecord)  # type: ignore[no-any-return]

    # The new generation.

    def join(self, arrived: Transferred) -> None:
        """Return when this process is the rank."""
        self._send(arrived)
        while True:
            order = self._next(self.generation)
            if isinstance(order, Rebuild):
                self._rebuild(order)
            elif isinstance(order, Commit):
                break
        assert self.plan is not None
        self._lender.close()
        new_generation.commit(self._engine, self.generation, self.plan)
        self.is_over = True
        self._send(Resumed(self.generation, 0))

    def _rebuild(self, order: Rebuild) -> None:
        new_generation.rebuild(
            self._engine, order, self._inject, connected=lambda: self._take_place(order.target), joins=True
        )

    def _take_place(self, target: int) -> None:
        """Check that this process is in all of the new groups, and lay out its models as the others'."""
        engine = self._engine
        plan = self.plan
        assert plan is not None
        if engine.new_groups is not None:
            engine.new_groups.check_incomplete(engine.records.others or {})
        engine.layouts.adopt(target, ddp_layouts.prepare_joiner(engine.wrapped, plan.ddp_layout, target))

    def _next(self, generation: int) -> SwitchOrder | Interrupt:
        while True:
            order = self._engine.recovery.raw_order()
            if isinstance(order, Interrupt) and order.generation > generation:
                raise MovedOnError(f"generation {order.generation} was announced while entering {generation}")
            if getattr(order, "generation", generation) == generation:
                return order

    def failed(self, error: BaseException) -> None:
        """Tell the controller that another spare is needed."""
        self._send(
            OrderFailed(self.generation, JOIN, reason_of(error), lasting=_comes_again(error) and not self._is_receiving)
        )

    def _inject(self, phase: str) -> None:
        if self._engine.faults is not None:
            self._engine.faults.in_migration(phase, None if self.plan is None else self.plan.target + 1)

    def _send(self, report: Any) -> None:
        self._engine.link.send(report)


def _comes_again(error: BaseException) -> bool:
    """Return whether any other process would meet the error: it is of the script or the journal, not of peers or of this moment."""
    of_ours = (StateMismatchError, UnsupportedError, JournalError)  # not of what a peer has sent
    return isinstance(error, (*of_ours, ImportError, SyntaxError, pickle.PicklingError))
