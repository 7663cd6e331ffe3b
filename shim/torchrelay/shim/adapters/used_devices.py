"""Which devices this process uses: those that it has a context on.

Leans on `torch._C._cuda_hasPrimaryContext`, which makes none, and on `torch.cuda.default_generators`, one for each device that is
visible. A torch that lacks the first one tells of the current device alone. Read in torch 2.13.0, and seen there with the imitated
GPU of tests/imitated_gpu.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

import torch

_has_context: Callable[[int], bool] | None = getattr(torch._C, "_cuda_hasPrimaryContext", None)


class UsedDevices:
    """A context stays as long as its process does, so each device is asked for no more once it has one."""

    def __init__(self) -> None:
        self._used: set[int] = set()

    def add(self, devices: Iterable[int]) -> None:
        """Those that count as used, with a context or without."""
        self._used.update(devices)

    def indices(self) -> list[int]:
        """In their order. The libraries of devices have to be initialized."""
        self._used.add(torch.cuda.current_device())
        if _has_context is not None:
            others = set(range(len(torch.cuda.default_generators))) - self._used
            self._used.update(device for device in others if _has_context(device))
        return sorted(self._used)
