"""Large tensors that steps write to before their gate: a memory bank, a queue, an average that is updated before the optimizer.

They are too large for the journal, so nothing else could take such a write back. From the first step on that was seen to write
to one it is copied at each boundary, on its own device, until the gate is passed. In the first steps nobody knows which tensors
these are: all are copied then that no optimizer steps, as far as that is no more than could be copied in each step.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import NamedTuple

import torch

from torchrelay.protocol.errors import StateMismatchError
from torchrelay.shim.adapters.dtensor import is_spread, local
from torchrelay.shim.capture import small
from torchrelay.shim.capture.host_state import HostState
from torchrelay.shim.step.uncounted_writes import UncountedWrites
from torchrelay.shim.tensors.tensor_versions import version_of

_LOOKS, _THEN_EACH = 16, 7
"""Gates at which every tensor is looked at; after these, each seventh: what is written each tenth or hundredth step meets one."""
FIRST_STEPS = 2
"""In which nobody knows yet what a step does."""
MOST_BYTES = 256 << 20
"""Of tensors in host memory, which is copied at 5 to 10 GB a second. A step that writes to more cannot be taken back."""


class _Kept(NamedTuple):
    """A tensor as it is at the boundary. `memory`: what it is in; assignment to `.data` gives it other memory."""

    path: str
    tensor: torch.Tensor
    version: int
    memory: torch.Tensor
    content: torch.Tensor

    @classmethod
    def of(cls, path: str, tensor: torch.Tensor, version: int) -> _Kept:
        memory = local(tensor).detach()
        return cls(path, tensor, version, memory, memory.clone())

    def was_moved(self) -> bool:
        if not _is_plain(self.tensor):
            return False
        return local(self.tensor).data_ptr() != self.memory.data_ptr()

    def put_back(self) -> None:
        if self.was_moved() and not is_spread(self.tensor):
            self.tensor.data = self.memory
        local(self.tensor).data.copy_(self.content)  # past the count, which others share that were not written to


class EarlyWrites:
    def __init__(self) -> None:
        self._paths: set[str] = set()
        self.paths: tuple[str, ...] = ()
        """Which tensors steps were seen to write to. The same in all ranks that run the same script."""
        self._gates = 0
        self._kept: list[_Kept] = []
        self._large: list[tuple[str, torch.Tensor, int]] = []
        """Where `_uncounted` looks: those of the boundary."""
        self._uncounted = UncountedWrites()
        self.copied_bytes = 0
        """In each step."""
        self.too_large = ""
        """What steps write to and is not copied, since it is too much, in words."""

    def at_boundary(self, state: HostState) -> None:
        self.drop()
        looks, first = self._looks_at(self._gates + 1), self._gates < FIRST_STEPS
        if not looks and not self._paths:
            return
        large = [*_large(state)]
        wanted = {path for path, _, _ in large} & self._paths
        if first:
            groups = [group["params"] for _, optimizer in state.optimizers for group in optimizer.param_groups]
            stepped = {id(p) for parameters in groups for p in parameters if p.requires_grad}
            others = [(path, tensor) for path, tensor, _ in large if id(tensor) not in stepped and _is_plain(tensor)]
            if _on_host_bytes(tensor for _, tensor in others) <= MOST_BYTES:
                wanted |= {path for path, _ in others}
        with torch.no_grad():
            self._kept = [_Kept.of(*entry) for entry in large if entry[0] in wanted]
        known = [kept.content for kept in self._kept if kept.path in self._paths]
        self.copied_bytes = sum(content.numel() * content.element_size() for content in known)
        if looks:
            self._large = large
            self._uncounted.begin([tensor for _, tensor, _ in large])

    def _looks_at(self, gate: int) -> bool:
        return gate <= _LOOKS or gate % _THEN_EACH == 0

    def at_gate(self, state: HostState, taken_back: Collection[int]) -> None:
        """Looks which tensors the step has written to. `taken_back`: by id, those of which there is a copy already."""
        self._gates += 1
        if not self._looks_at(self._gates):
            return
        past_counts = {self._large[number][0] for number in self._uncounted.written()}
        written = {
            path: tensor
            for path, tensor, version in _large(state)
            if path not in self._paths
            and id(tensor) not in taken_back
            and (version_of(tensor) != version or path in past_counts)
        }
        known = [kept.tensor for kept in self._kept if kept.path in self._paths]
        if written and _on_host_bytes([*written.values(), *known]) <= MOST_BYTES:
            self.take_over(written)
        elif written:
            name, *others = sorted(path.partition(":")[2] or path for path in written)
            self.too_large = (
                f"{name}{f' and {len(others)} more' if others else ''}: written to before the optimizer step, and more than the "
                f"{MOST_BYTES >> 20} MiB that are copied in each step: a step that was interrupted cannot be done again"
            )

    def take_over(self, paths: Iterable[str]) -> None:
        """Note tensors that steps of this rank write to: a process that takes it over has seen no such step."""
        self._paths.update(paths)
        self.paths = tuple(sorted(self._paths))

    def tensors(self) -> list[torch.Tensor]:
        return [kept.tensor for kept in self._kept]

    def summed_up(self, tensors: Sequence[torch.Tensor]) -> None:
        self._uncounted.summed_up(tensors)

    def put_back(self, state: HostState) -> None:
        """`state`: of the boundary, which knows by the versions of its tensors whether they are as they were.

        Raises StateMismatchError where a tensor was written to past torch's counts, and there is no copy of it.
        """
        past_counts = {self._large[number][0] for number in self._uncounted.written()}
        self._uncounted.end()
        versions = {}
        with torch.no_grad():
            for kept in self._kept:
                if (
                    kept.path in self._paths | past_counts
                    or version_of(kept.tensor) != kept.version
                    or kept.was_moved()
                ):
                    kept.put_back()
                    versions[id(kept.tensor)] = version_of(kept.tensor)
        self.take_over(kept.path for kept in self._kept if kept.path in past_counts)
        lost = sorted(past_counts.difference(kept.path for kept in self._kept))
        if lost:
            raise StateMismatchError(
                f"written to since the boundary, past torch's count, and larger than {small.SMALL_BYTES} bytes: "
                f"{', '.join(lost[:5])}"
            )
        if not versions:
            return
        self._kept = [kept._replace(version=versions.get(id(kept.tensor), kept.version)) for kept in self._kept]
        state.versions[:] = [(t, versions.get(id(t), version), path) for t, version, path in state.versions]
        for large, known in state.tree_versions:
            known[:] = [versions.get(id(t), version) for (_, t), version in zip(large, known)]

    def drop(self) -> None:
        """The gate is passed."""
        self._uncounted.end()
        self._kept, self._large = [], []


def _is_plain(tensor: torch.Tensor) -> bool:
    """Whether it has memory of the usual kind."""
    return tensor.layout is torch.strided and not tensor.is_meta


def _on_host_bytes(tensors: Iterable[torch.Tensor]) -> int:
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors if tensor.is_cpu)


def _large(state: HostState) -> Iterator[tuple[str, torch.Tensor, int]]:
    for tensor, version, path in state.versions:
        yield path, tensor, version
    for number, (large, versions) in enumerate(state.tree_versions):
        for (name, tensor), version in zip(large, versions):
            yield f"{number}:{name}", tensor, version
