"""Tell which large tensors of a step's own nobody reads behind its update: gradients of samples that are dropped there.

A rank that is lost behind its gate is restored by going through the rest of that step, without what it alone had computed. Where
the steps that were followed have neither read such a tensor there nor kept it, none is needed. A process that takes the rank over
is watched all the same, and fails where it comes to such a read.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING

from torchrelay.shim.adapters.tensors.own_refs import OwnRef

if TYPE_CHECKING:
    import weakref

    import torch

    from torchrelay.shim.capture.state.host_state import HostState

_STEPS = 2
"""So many steps that were followed have left a tensor unread before that is counted on."""


class UnreadResults:
    """`made`: what the step had made by its gate, by path. It is held until the update is done."""

    def __init__(self) -> None:
        self.made: dict[str, torch.Tensor] = {}
        self._left: dict[str, weakref.ref[torch.Tensor]] = {}
        """What the step that was followed has not read. Whether it keeps it shows at its end."""
        self._times: dict[str, int] = {}
        """By path, the steps that have left it unread and dropped it; 0 for good once one has not."""

    def at_gate(self, made: Mapping[str, torch.Tensor]) -> frozenset[str]:
        """Note the large tensors that the step has made. Return the paths of those that no step reads behind its update."""
        self.made = dict(made)
        return frozenset(path for path in made if self._times.get(path, 0) >= _STEPS)

    def followed(self, made: Mapping[str, torch.Tensor], read: Collection[str]) -> None:
        """Note that a step was followed from its update to its end. `read`: the paths of what it has read there."""
        self._times.update(dict.fromkeys(read, 0))
        self._left = {path: OwnRef(tensor) for path, tensor in made.items() if path not in read}

    def at_boundary(self, state: HostState) -> None:
        """Look which of them the script still has at the next head."""
        for path, ref in self._left.items():
            tensor = ref()
            if tensor is not None and id(tensor) in state.index:
                self._times[path] = 0
            elif self._times.get(path) != 0:
                self._times[path] = self._times.get(path, 0) + 1
        self._left = {}

    def drop(self) -> None:
        """Let go of the tensors."""
        self.made = {}
