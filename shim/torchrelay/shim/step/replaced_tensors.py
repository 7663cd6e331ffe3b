"""Tensors that the latest boundary has no more: those of a model that was made anew between two training loops.

A rank that is lost between the loops goes through the rest of its last step once more. Others may stand at the next loop's head by
then, and have bound the model's name to a new one. What the old one held after its update is kept until the next gate.
"""

from __future__ import annotations

import operator
from typing import TYPE_CHECKING

import torch

from torchrelay.shim.adapters.tensors.dtensor import local
from torchrelay.shim.capture.models import device
from torchrelay.shim.capture.models.device import BEFORE
from torchrelay.shim.capture.rng import byte_tensor
from torchrelay.shim.capture.state.host_state import HostState
from torchrelay.shim.journal import payload
from torchrelay.shim.tensors.tensor_bytes import size_bytes

if TYPE_CHECKING:
    from torchrelay.shim.step.boundary_snapshot import BoundarySnapshot
    from torchrelay.shim.step.engine import Engine

MOST_BYTES = 1 << 30
"""The script may count on the memory that the old model leaves to the new one."""


class ReplacedTensors:
    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self.tensors: dict[str, torch.Tensor] = {}
        """All that there were at the boundary before, if any of them was replaced."""
        self._names: dict[str, str] = {}
        """What the tensors that there are now were called at the boundary before."""
        self.late: dict[str, int] | None = None
        """How often they were written to since the update, as LateWrites has it."""

    def drop(self) -> None:
        self.tensors = {}
        self._names = {}
        self.late = None

    def to_give(self) -> dict[str, torch.Tensor]:
        """Return what another process needs of the boundary before, with the names of that time."""
        return {**self.tensors, device.NAMES: byte_tensor(payload.dump(self._names))} if self.tensors else {}

    def at_boundary(self, before: BoundarySnapshot | None, now: BoundarySnapshot) -> None:
        self.drop()
        if before is None or before.boundary + 1 != now.boundary:
            return
        if before.activation is now.activation and _are_numbered_alike(before.state, now.state):
            return
        state = device.after_update(before.state)
        old = device.whole(state, state.roots)
        new = device.whole(now.state, now.state.roots)
        if all(new.get(path) is tensor for path, tensor in old.items()):
            return
        present = set(map(id, new.values()))
        size = sum(size_bytes(local(tensor)) for tensor in old.values() if id(tensor) not in present)
        if size > MOST_BYTES:
            self._engine.reporter.replaced_too_large(size)
            return
        self.tensors = {f"{BEFORE}{path}": tensor for path, tensor in device.catalogue(state, state.roots).items()}
        self._names = device.names_before(old, new)
        self.late = self._engine.updates.late.until(before.state.as_it_is_now())


def _are_numbered_alike(before: HostState, now: HostState) -> bool:
    """Return whether each number means the same model, or optimizer, as before."""
    ours, theirs = ([*state.roots, *(optimizer for _, optimizer in state.optimizers)] for state in (before, now))
    return len(before.roots) == len(now.roots) and len(ours) == len(theirs) and all(map(operator.is_, ours, theirs))
