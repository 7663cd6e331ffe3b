"""Watches on loss and gradient norm: what they were in a step is looked at before its gate, where nothing has been updated.

The loss is the scalar that backward is called on; a step with several has their sum. The gradients are this rank's own part of
those that the optimizers are about to use.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, Protocol

import torch

from torchrelay.protocol.messages import NumberAlarm, NumbersDecided
from torchrelay.protocol.options.numbers import ALERT, GRAD_NORM, LOSS, NumberWatch, Usual
from torchrelay.shim.adapters.tensors.dtensor import local
from torchrelay.shim.adapters.tensors.parameter_gradients import gradients_of
from torchrelay.shim.agent_link.link import AgentLink

if TYPE_CHECKING:
    from torchrelay.shim.step.boundary_snapshot import BoundarySnapshot


class NewsOfMigrations(Protocol):
    """What the link's thread hears, and the training thread waits for."""

    def wait_until(self, done: Callable[[], bool], timeout_s: float | None = None) -> None: ...
    def wake(self) -> None: ...


class WatchedRank(Protocol):
    """What a watch on numbers needs of its rank."""

    @property
    def link(self) -> AgentLink: ...
    @property
    def recovery(self) -> NewsOfMigrations: ...
    def waiting(self, on: bool) -> None: ...


class LossWatch:
    def __init__(self, engine: WatchedRank, watches: Sequence[NumberWatch]) -> None:
        self._engine = engine
        self._watches = {w.what: w for w in watches if w.what in (LOSS, GRAD_NORM)}
        self._usual = {what: Usual() for what in self._watches}
        self._roots: list[torch.Tensor] = []
        self._seen: dict[str, float] = {}
        self._decided = -1
        self._lock = threading.Lock()

    def begin_step(self) -> None:
        """Begin a step at a head, or where a step is done again."""
        self._roots.clear()
        self._seen.clear()

    def backward(self, tensors: Any) -> None:
        """Note what torch.autograd.backward was called with, which is `tensors`."""
        if LOSS in self._watches:
            found: Iterable[Any] = (tensors,) if isinstance(tensors, torch.Tensor) else tensors
            self._roots += [t.detach() for t in found if isinstance(t, torch.Tensor) and t.numel() == 1]

    def at_gate(self, commit: BoundarySnapshot) -> None:
        """Tell of what is suspect. Return when the step may go on, or when a migration has begun."""
        self._seen = self._now(commit)
        waits = False
        for what, value in self._seen.items():
            watch = self._watches[what]
            usual = self._usual[what]
            why = usual.suspicion(value, watch.over)
            if why:
                text = f"{what} of step {commit.boundary + 1} {why}"
                alarm = NumberAlarm(what, commit.boundary, value, usual.mean, watch.action, text)
                self._engine.link.send(alarm)
                waits = waits or watch.action != ALERT
        if waits:
            self._engine.waiting(True)
            try:
                self._engine.recovery.wait_until(lambda: self._decided >= commit.boundary)
            finally:
                self._engine.waiting(False)

    def passed(self) -> None:
        """Note that the gate was passed: the step will be done."""
        for what, value in self._seen.items():
            self._usual[what].add(value)

    def decided(self, order: NumbersDecided) -> None:
        """Let the step that starts at this boundary go on. For the link's thread."""
        with self._lock:
            self._decided = max(self._decided, order.boundary)
        self._engine.recovery.wake()

    def _now(self, commit: BoundarySnapshot) -> dict[str, float]:
        found = {}
        if self._roots:
            found[LOSS] = float(sum(float(root) for root in self._roots))
        if GRAD_NORM in self._watches:
            own = [p for _, optimizer in commit.state.optimizers for g in optimizer.param_groups for p in g["params"]]
            there = [gradient for gradient in gradients_of(own) if gradient is not None]
            gradients = [local(gradient).detach() for gradient in there if not gradient.is_sparse]
            if gradients:
                norms = [torch.linalg.vector_norm(g, dtype=torch.float32).to("cpu") for g in gradients]
                found[GRAD_NORM] = float(torch.linalg.vector_norm(torch.stack(norms)))
        return found
