"""Tell which devices this process uses: those that it has a context on.

Leans on `torch._C._cuda_hasPrimaryContext`, which makes none, and on `torch.cuda.default_generators`, one for each device that is
visible. A torch that lacks the first one tells of the current device alone. Read in torch 2.13.0, and seen there with the imitated
GPU of tests/imitated_gpu.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

import torch

_has_context: Callable[[int], bool] | None = getattr(torch._C, "_cuda_hasPrimaryContext", None)


class UsedDevices:
    """Find the used devices. A context stays as long as its process does, so a device that has one is not asked again."""

    def __init__(self) -> None:
        self._used: set[int] = set()

    def add(self, devices: Iterable[int]) -> None:
        """Count these devices as used, with a context or without."""
        self._used.update(devices)

    def indices(self) -> list[int]:
        """Return the indices of the used devices, in order. The libraries of devices have to be initialized."""
        self._used.add(torch.cuda.current_device())
        if _has_context is not None:
            others = set(range(len(torch.cuda.default_generators))) - self._used
            self._used.update(device for device in others if _has_context(device))
        return sorted(self._used)
