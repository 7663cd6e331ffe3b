"""Large tensors that steps write to before their gate: a memory bank, a queue, an average that is updated before the optimizer.

They are too large for the journal, so nothing else could take such a write back. From the first step on that was seen to write
to one it is copied at each boundary, on its own device, until the gate is passed. Torch does not count every write: whether a step
makes such ones is looked at from its boundary to its gate. What lies in memory that was let go of at the time has no content:
a module that FullyShardedDataParallel has taken its parameters from keeps views of what it gathers.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator

import torch

from torchrelay.shim.adapters.tensors.dtensor import local
from torchrelay.shim.adapters.tensors.storages import is_freed
from torchrelay.shim.capture.state.host_state import HostState, catalogue_numbers
from torchrelay.shim.step.updates.optimizer_states import OptimizerStates
from torchrelay.shim.step.updates.uncounted_writes import UncountedWrites
from torchrelay.shim.tensors.tensor_bytes import write
from torchrelay.shim.tensors.tensor_versions import version_of

_LOOKS = 16
_THEN_EACH = 7
"""Gates at which every tensor is looked at; after these, each seventh: what is written each tenth or hundredth step meets one."""
MOST_BYTES = 256 << 20
"""Of tensors in host memory, which is copied at 5 to 10 GB a second. A step that writes to more cannot be taken back."""


class EarlyWrites:
    """Copies of the large tensors that steps write to before their gate.

    `states`: of optimizers, which steps may write to there, too.
    """

    def __init__(self, states: OptimizerStates) -> None:
        self._states = states
        self._paths: set[str] = set()
        self.paths: tuple[str, ...] = ()
        """Which tensors steps were seen to write to. The same in all ranks that run the same script."""
        self._gates = 0
        self._uncounted = UncountedWrites()
        self.summed_up = self._uncounted.summed_up
        self._kept: list[tuple[torch.Tensor, torch.Tensor, int]] = []
        """Each with what it held at the boundary, and how often it had been written to when it last held that."""
        self.copied_bytes = 0
        """In each step."""

    def at_boundary(self, state: HostState) -> None:
        self._kept = []
        if self._paths:
            with torch.no_grad():
                self._kept = [
                    (tensor, local(tensor).detach().clone(), version)
                    for path, tensor, version in (*_large(state), *self._states.at(self._paths))
                    if path in self._paths and not is_freed(local(tensor))
                ]
            self.copied_bytes = sum(copy.numel() * copy.element_size() for _, copy, _ in self._kept)
        self._uncounted.end()
        if self._is_looked_at(self._gates + 1):
            self._uncounted.begin((path, tensor) for path, tensor, _ in _large(state) if path not in self._paths)

    def at_gate(self, state: HostState, taken_back: Collection[int]) -> None:
        """Look which tensors the step has written to. `taken_back`: ids of tensors of which there is a copy already."""
        self._gates += 1
        if not self._is_looked_at(self._gates):
            return
        found = [(path, tensor) for path, tensor, version in _large(state) if version_of(tensor) != version]
        found += self._uncounted.written()
        found += self._states.written()
        self._uncounted.end()
        written = {
            path: tensor
            for path, tensor in found
            if not (path in self._paths or id(tensor) in taken_back or is_freed(local(tensor)))
        }
        on_host_bytes = sum(t.numel() * t.element_size() for t in written.values() if t.is_cpu) + self.copied_bytes
        if written and on_host_bytes <= MOST_BYTES:
            self.take_over(written)

    def take_over(self, paths: Iterable[str]) -> None:
        """Note tensors that steps of this rank write to: a process that takes it over has seen no such step."""
        self._paths.update(paths)
        self.paths = tuple(sorted(self._paths))

    def tensors(self) -> list[torch.Tensor]:
        return [tensor for tensor, _, _ in self._kept]

    def put_back(self, state: HostState) -> dict[int, int]:
        """Put the copies back. `state`: of the boundary, which knows by the versions of its tensors whether they are as they were.

        Returns how often each tensor that was put back had been written to when it last held what it holds again, by its id.
        """
        self._uncounted.end()
        with torch.no_grad():
            for tensor, content, _ in self._kept:  # all of them: not every write is counted
                if not is_freed(local(tensor)):
                    write(local(tensor).detach(), content)
        versions = {id(tensor): version_of(tensor) for tensor, _, _ in self._kept}  # views of one memory count together
        copied_at = {id(tensor): version for tensor, _, version in self._kept}
        self._kept = [(tensor, content, versions.get(id(tensor), version)) for tensor, content, version in self._kept]
        if not versions:
            return copied_at
        state.versions[:] = [(t, versions.get(id(t), version), path) for t, version, path in state.versions]
        for large, known in state.tree_versions:
            known[:] = [versions.get(id(t), version) for (_, t), version in zip(large, known)]
        return copied_at

    def drop(self) -> None:
        """Drop the copies: the gate is passed, or there will be none."""
        self._kept = []
        self.look_no_more()

    def look_no_more(self) -> None:
        """Stop looking, since the loop is over: what lies in front of a gate behind it was seen before, or is not seen."""
        self._uncounted.end()

    @staticmethod
    def _is_looked_at(gate: int) -> bool:
        return gate <= _LOOKS or gate % _THEN_EACH == 0


def _large(state: HostState) -> Iterator[tuple[str, torch.Tensor, int]]:
    for tensor, version, path in state.versions:
        yield path, tensor, version
    for number, (large, versions) in zip(catalogue_numbers(state.tree_versions), state.tree_versions):
        for (name, tensor), version in zip(large, versions):
            yield f"{number}:{name}", tensor, version
