"""Small tensors that a step writes to behind its update, as the update has left them: a scale that is clamped there.

A rank that is lost behind its gate is restored by going through the rest of that step once more, with tensors from a rank that
may be through with it. Where that one has a copy of what the update left, the rest writes to it as the lost rank would have, and
what the step reads there is right, whether torch counts the writes or not.

So are larger ones, and an optimizer's, that `LateReads` has seen to be read there, as long as they are not much.

Which small tensors these are is seen behind a process's first updates and now and then: by torch's counts of writes, and where a
step goes past these. A write that changes nothing counts, as most clamps do: what was read there can be told only with the copy.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator

import torch

from torchrelay.shim.adapters.tensors.dtensor import local
from torchrelay.shim.adapters.tensors.storages import is_freed
from torchrelay.shim.capture.models import device
from torchrelay.shim.capture.state.host_state import HostState, catalogue_numbers
from torchrelay.shim.step.updates.uncounted_writes import UncountedWrites
from torchrelay.shim.tensors.tensor_versions import version_of

SMALL_BYTES = 4 << 10
MOST_BYTES = 1 << 20
"""Of all that are copied behind each update."""
MOST_READ_BYTES = 4 << 20
"""Of all that are copied since steps read them. A copy of so much takes 1 to 2 ms in host memory."""
_FIRST_UPDATES = 4
_LOOK_EACH = 64
"""All small tensors are copied and looked at behind the first updates of a process, and behind each so many-th one."""


class UpdatedTensors:
    def __init__(self) -> None:
        self._paths: set[str] = set()
        """That were seen to be written to behind an update."""
        self._read: frozenset[str] = frozenset()
        """That steps read behind their update before they write to them, or past torch's counts."""
        self._updates = 0
        self._trees: list[object] = []
        self._chosen: list[tuple[str, torch.Tensor]] = []
        """Those of `_paths` in these trees."""
        self._uncounted = UncountedWrites()
        self._counted: list[tuple[str, torch.Tensor, int]] = []
        """Small tensors with the version that they had after the latest update, where these are looked at."""
        self._copies: dict[str, torch.Tensor] = {}
        """By path: what a tensor held after the latest update."""

    def begin_step(self) -> None:
        """At a head: what the step before has written behind its update is known now."""
        if self._counted:
            self._paths.update(path for path, _ in self._uncounted.written())
            self._paths.update(path for path, tensor, version in self._counted if version_of(tensor) != version)
            self._copies = {
                path: copy for path, copy in self._copies.items() if path in self._paths or path in self._read
            }
            self._trees = []
        self.look_no_more()

    def gate_passed(self) -> None:
        """Until the update is done nobody has what it leaves."""
        self._copies = {}

    def note(self, state: HostState) -> None:
        """Right after an update; the latest one of a step counts."""
        self._copies = {}
        self.look_no_more()
        looks = self._updates < _FIRST_UPDATES or self._updates % _LOOK_EACH == 0
        self._updates += 1
        if self._read:
            self._copy_read(state)
        if not looks and not self._paths:
            return
        size_bytes = 0
        found = [*_small(state)] if looks else self._known(state)
        for path, tensor in found:
            part = local(tensor).detach()
            if is_freed(part):  # fully_shard has let go of what it had gathered
                continue
            size_bytes += part.numel() * part.element_size()
            if size_bytes > MOST_BYTES:
                break
            self._copies[path] = part.clone()
        if looks:
            self._counted = [(path, tensor, version_of(tensor)) for path, tensor in found]
            self._uncounted.begin(found)

    def copies_also(self, paths: Collection[str], size_bytes: int) -> bool:
        """Copy these tensors, too, behind each update from the next one on. Return False where that would be too much."""
        if size_bytes > MOST_READ_BYTES:
            return False
        self._read |= frozenset(paths)
        return True

    def _copy_read(self, state: HostState) -> None:
        left = MOST_READ_BYTES
        for path, tensor in device.catalogue(state, state.roots).items():
            if path in self._read and not is_freed(tensor):
                left -= tensor.numel() * tensor.element_size()
                if left < 0:
                    return
                self._copies[path] = tensor.clone()

    def look_no_more(self) -> None:
        """Whether steps write behind their updates is not looked at until the next one."""
        self._uncounted.end()
        self._counted = []

    def tensors(self) -> dict[str, torch.Tensor]:
        """Return what they held after the latest update, by path."""
        return self._copies

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
