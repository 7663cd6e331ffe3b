"""Small tensors that a step writes to behind its update, as the update has left them: a scale that is clamped there.

A rank that is lost behind its gate is restored by going through the rest of that step once more, with tensors from a rank that
may be through with it. Where that one has a copy of what the update left, the rest writes to it as the lost rank would have, and
what the step reads there is right, whether torch counts the writes or not.

Which tensors these are is seen by their content, in a process's first steps and now and then.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch

from torchrelay.shim.adapters.tensors.dtensor import local
from torchrelay.shim.capture.state.host_state import HostState, catalogue_numbers
from torchrelay.shim.tensors.tensor_bytes import are_same_bits

SMALL_BYTES = 4 << 10
MOST_BYTES = 1 << 20
"""Of all that are copied behind each update."""
_FIRST_STEPS, _LOOK_EACH = 4, 64
"""All small tensors are copied and compared in the first steps of a process, and in each so many-th step."""


class UpdatedTensors:
    def __init__(self) -> None:
        self._paths: set[str] = set()
        """That were seen to be written to behind an update."""
        self._steps = 0
        self._looks = False
        self._trees: list[object] = []
        self._chosen: list[tuple[str, torch.Tensor]] = []
        """Those of `_paths` in these trees."""
        self._copies: dict[str, tuple[torch.Tensor, torch.Tensor]] = {}
        """By path: a tensor, and what it held after the latest update."""

    def begin_step(self) -> None:
        """At a head: what the step before has written behind its update is known now."""
        if self._looks:
            pairs = ((path, local(tensor).detach(), copy) for path, (tensor, copy) in self._copies.items())
            self._paths |= {path for path, now, copy in pairs if not are_same_bits(now, copy)}
            self._copies = {path: pair for path, pair in self._copies.items() if path in self._paths}
            self._trees = []
        self._looks = self._steps < _FIRST_STEPS or self._steps % _LOOK_EACH == 0
        self._steps += 1

    def gate_passed(self) -> None:
        """Until the update is done nobody has what it leaves."""
        self._copies = {}

    def note(self, state: HostState) -> None:
        """Right after an update; the latest one of a step counts."""
        self._copies = {}
        if not self._looks and not self._paths:
            return
        size_bytes = 0
        for path, tensor in _small(state) if self._looks else self._known(state):
            part = local(tensor).detach()
            size_bytes += part.numel() * part.element_size()
            if size_bytes > MOST_BYTES:
                return
            self._copies[path] = tensor, part.clone()

    def tensors(self) -> dict[str, torch.Tensor]:
        """Return what they held after the latest update, by path."""
        return {path: copy for path, (_, copy) in self._copies.items()}

    def _known(self, state: HostState) -> list[tuple[str, torch.Tensor]]:
        trees = [large for large, _ in state.tree_versions]
        if len(trees) != len(self._trees) or any(now is not then for now, then in zip(trees, self._trees)):
            self._trees = [*trees]
            self._chosen = [(path, tensor) for path, tensor in _small(state) if path in self._paths]
        return self._chosen


def _small(state: HostState) -> Iterator[tuple[str, torch.Tensor]]:
    for number, (large, _) in zip(catalogue_numbers(state.tree_versions), state.tree_versions):
        for name, tensor in large:
            if tensor.numel() * tensor.element_size() <= SMALL_BYTES and not tensor.is_meta:
                yield f"module{number}.{name}", tensor
