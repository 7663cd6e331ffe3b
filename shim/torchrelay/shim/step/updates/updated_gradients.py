"""Gradients as the update has left them, for a rank that is lost between it and the next step and had read them there: norms
that a script logs.

They are held, and not copied: a script that drops its gradients lets go of them here one step later. What was written to since
is not given any more. Only those are the same on all ranks that `DistributedDataParallel` has reduced; where one went past it, an
optimizer would have made other weights of it.
"""

from __future__ import annotations

import torch
from torch.nn.parallel import DistributedDataParallel

from torchrelay.shim.adapters.tensors.parameter_gradients import gradients_of
from torchrelay.shim.capture.models import device
from torchrelay.shim.capture.state.host_state import HostState
from torchrelay.shim.capture.values.kinds import Kind
from torchrelay.shim.tensors.tensor_bytes import size_bytes
from torchrelay.shim.tensors.tensor_versions import versions_of

MOST_BYTES = 64 << 20
"""Models with more gradients than this keep none: they would fill memory that the next step may need."""


class UpdatedGradients:
    def __init__(self) -> None:
        self._trees: list[object] = []
        self._paths: list[str] = []
        self._parameters: list[torch.Tensor] = []
        """In these trees, those of data parallel wrappers that an optimizer updates; none where they are too large together."""
        self._held: list[tuple[str, torch.Tensor]] = []
        """By path, as of the latest update."""
        self._versions: list[int] = []

    def gate_passed(self) -> None:
        """Until the update is done nobody has what it leaves."""
        self._held = []
        self._versions = []

    def note(self, state: HostState) -> None:
        """Right after an update; the latest one of a step counts."""
        self._find_parameters(state)
        found = zip(self._paths, gradients_of(self._parameters))
        self._held = [(path, gradient) for path, gradient in found if gradient is not None]
        self._versions = versions_of([gradient for _, gradient in self._held])

    def tensors(self) -> dict[str, torch.Tensor]:
        """Return those that nobody has written to since, by their parameters' paths."""
        now = versions_of([gradient for _, gradient in self._held])
        return {
            path: gradient.detach()
            for (path, gradient), before, version in zip(self._held, self._versions, now)
            if before == version and _has_own_memory(gradient)
        }

    def _find_parameters(self, state: HostState) -> None:
        trees: list[object] = [large for large, _ in state.tree_versions]
        if len(trees) == len(self._trees) and all(now is then for now, then in zip(trees, self._trees)):
            return
        wrapped = {id(p) for node in state.nodes if node.kind is Kind.DDP for p in _reduced(node.obj)}
        updated = {
            id(p) for _, optimizer in state.optimizers for group in optimizer.param_groups for p in group["params"]
        }
        found = {path: p for path, p in device.parameters(state).items() if id(p) in wrapped & updated}
        if sum(map(size_bytes, found.values())) > MOST_BYTES:
            found = {}
        self._trees = trees
        self._paths = [*found]
        self._parameters = [*found.values()]


def _reduced(wrapper: DistributedDataParallel) -> list[torch.nn.Parameter]:
    ignored = wrapper.parameters_to_ignore
    return [p for name, p in wrapper.module.named_parameters() if p.requires_grad and name not in ignored]


def _has_own_memory(gradient: torch.Tensor) -> bool:
    """Whether no bucket of a wrapper holds it, to which the next backward writes past torch's counts."""
    return gradient.layout is torch.strided and gradient.untyped_storage().nbytes() == size_bytes(gradient)
