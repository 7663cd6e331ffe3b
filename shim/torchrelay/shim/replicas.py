"""Content digests of the device state, taken now and then at boundaries: who holds the same bytes can stand in for a loss.

All ranks check at the same boundaries: at the first ones, at powers of two, then every 1024 steps, so that the cost fades.
Two ranks that were equal at a checked boundary and passed the same gates since still are.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from torchrelay.protocol.messages import ReplicaCheck
from torchrelay.shim import digest
from torchrelay.shim.capture import device

if TYPE_CHECKING:
    from torchrelay.shim.commit import Commit
    from torchrelay.shim.engine import Engine

_EVERY = 1024


def is_due(boundary: int) -> bool:
    return boundary % _EVERY == 0 or boundary & (boundary - 1) == 0


class ReplicaChecks:
    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    @staticmethod
    def tensors(commit: Commit) -> dict[str, torch.Tensor]:
        """What a joiner needs from a donor."""
        return device.catalogue(commit.state, commit.state.roots)

    def at_boundary(self, commit: Commit) -> None:
        if not is_due(commit.boundary) or self._engine.shadow is not None:
            return
        digests = digest.digests(self.tensors(commit))
        paths = device.ddp_paths(commit.state.roots, [w.module for w in self._engine.wrapped], commit.state)
        self._engine.link.send(ReplicaCheck(commit.boundary, digests, tuple(paths)))
        self._engine.reporter.report(commit, always=True)  # with what steps cost by now
