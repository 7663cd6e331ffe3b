"""Optimizers that call their closure several times in a step, as LBFGS does, and write to the parameters in between; and those
that communicate within their step, and average gradients or gather parameters there.

No rank can be taken into the middle of such a step. So the gate comes behind it, when all ranks are through with what they do
together, and until then the step can be taken back like an update before the gate: of what it writes there is a copy.
"""

from __future__ import annotations

import pickle
import threading
from types import FrameType
from typing import TYPE_CHECKING, Any

import torch

from torchrelay.protocol.errors import StateMismatchError
from torchrelay.shim.capture.models import optimizer_order
from torchrelay.shim.capture.values import small
from torchrelay.shim.comm.collective_mode import CollectiveMode
from torchrelay.shim.comm.finished import MAX_RECORDED_BYTES, FinishedCollective

if TYPE_CHECKING:
    from torchrelay.shim.step.engine import Engine


_CLOSURE = "a closure's result"


def _name(optimizer: torch.optim.Optimizer) -> str:
    """Return the name of the optimizer's class, which is the same in every process of a job."""
    return f"{type(optimizer).__module__}.{type(optimizer).__qualname__}"


def _written(result: Any) -> Any:
    """Return the result as it is recorded; None where it cannot be kept."""
    if isinstance(result, torch.Tensor):
        fits = result.numel() * result.element_size() <= MAX_RECORDED_BYTES
        return [small.take(result.detach())] if fits else None
    return pickle.dumps(result) if isinstance(result, (bool, int, float)) else None


def _answered(recorded: Any, result: Any) -> Any:
    if isinstance(recorded, bytes):
        return pickle.loads(recorded)
    if recorded is None or not small.fits(recorded[0], result):
        raise StateMismatchError("what a closure has given to its optimizer was not kept")
    small.put(recorded[0], result)
    return result


class WholeSteps:
    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._begun: torch.optim.Optimizer | None = None
        self._inner = 0
        """Steps within it that are under way."""
        self.communicating: set[str] = set()
        """Names of classes of optimizers that have called a collective in a step."""

    @property
    def open(self) -> bool:
        """Return whether such a step is under way: the gate comes behind it."""
        return self._begun is not None

    def begins(self, frame: FrameType, optimizer: torch.optim.Optimizer, *, closure: bool) -> bool:
        """Note that a step begins, and return whether its gate comes behind it.

        A joiner has to know such steps before it has seen any.
        """
        updates = self._engine.updates
        if threading.get_ident() != threading.main_thread().ident:
            return False
        if self._begun is not None:
            self._inner += 1  # a wrapper's own optimizer, or a class's step that calls its parent's
            updates.keep_whole(frame, optimizer)
            return False
        if updates.within_a_step():
            return False
        if (closure and isinstance(optimizer, torch.optim.LBFGS)) or self.communicates(optimizer):
            self._begun = optimizer
            updates.keep_whole(frame, optimizer)
        return self.open

    def communicates(self, optimizer: torch.optim.Optimizer) -> bool:
        return _name(optimizer) in self.communicating

    def collective_within(self, optimizer: torch.optim.Optimizer) -> None:
        """Remember the optimizer's class: its steps communicate, and are known by the class from then on."""
        self.communicating.add(_name(optimizer))

    def begin_without(self, optimizer: torch.optim.Optimizer) -> None:
        """Make a joiner's optimizer state one with which the step comes through: its tensors come only at the gate.

        What is made here, or by the step, is replaced.
        """
        if isinstance(optimizer, torch.optim.LBFGS):
            optimizer.state.clear()
        else:
            optimizer_order.make_missing(optimizer)

    def told(self, result: Any) -> Any:
        """Return what a closure gives, recorded by itself: it goes through the optimizer to the script, where no journal sees it.

        Raises StateMismatchError where a joiner's shadow step calls the closure and the lost rank did not.
        """
        engine = self._engine
        before_gate = engine.step.is_in_body or (engine.way_in is not None and engine.way_in.before_gate())
        if not before_gate or result is None:
            return result
        engine.communication_begins()
        mode = engine.mode()
        if mode is CollectiveMode.ANSWER:
            return _answered(engine.answer(_CLOSURE, "").results, result)
        if mode is CollectiveMode.RECORD:
            engine.record_message(FinishedCollective(_CLOSURE, "", _written(result)))
        return result

    def ended(self) -> bool:
        """Note that a step has ended, and return whether its gate comes behind it."""
        if self._begun is None or threading.get_ident() != threading.main_thread().ident:
            return False
        if self._inner > 0:
            self._inner -= 1
            return False
        self._begun = None
        return True

    def forget(self) -> None:
        """Forget the step that was interrupted: it is begun again."""
        self._begun = None
        self._inner = 0
