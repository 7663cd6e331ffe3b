"""Whether a job on devices rounds alike in two runs, by its settings: for the protection report.

A migration moves state to the last bit. A step that is done again is computed again, and on a device it may round otherwise, as the
same step of another run may.
"""

from __future__ import annotations

import os
from dataclasses import dataclass

import torch

_WORKSPACE = "CUBLAS_WORKSPACE_CONFIG"
_REPEATS = (":4096:8", ":16:8")
"""Sizes of cuBLAS' workspace with which its sums come in one order whatever else the device does."""


@dataclass(frozen=True)
class Rounding:
    """Settings that decide it. `deterministic`: of `torch.use_deterministic_algorithms`; `cudnn`: of cuDNN alone."""

    deterministic: bool
    warns_only: bool
    cudnn_deterministic: bool
    cudnn_measures: bool
    workspace: str | None
    """None on AMD, whose libraries have no such setting."""

    @classmethod
    def here(cls) -> Rounding:
        return cls(
            torch.are_deterministic_algorithms_enabled(),
            torch.is_deterministic_algorithms_warn_only_enabled(),
            torch.backends.cudnn.deterministic,
            torch.backends.cudnn.benchmark,
            None if getattr(torch.version, "hip", None) else os.environ.get(_WORKSPACE, ""),
        )

    def open(self) -> list[str]:
        """Return which settings leave the order of sums open, and what closes it."""
        found = []
        if not self.deterministic:
            found.append("torch.use_deterministic_algorithms(True) is not called")
        elif self.warns_only:
            found.append("torch.use_deterministic_algorithms has warn_only=True")
        if not (self.cudnn_deterministic or self.deterministic):
            found.append("torch.backends.cudnn.deterministic is False")
        if self.cudnn_measures:
            found.append(
                "torch.backends.cudnn.benchmark is True, so that each process measures which algorithm it takes"
            )
        if self.workspace is not None and self.workspace not in _REPEATS:
            found.append(f"{_WORKSPACE} is {self.workspace or 'not set'} ({' or '.join(_REPEATS)} repeat)")
        return found


def note(rounding: Rounding) -> str:
    """Say what "bitwise" refers to in this job."""
    open_ = rounding.open()
    if not open_:
        return (
            "rounding on the device: deterministic by its settings (torch.use_deterministic_algorithms, cuDNN, cuBLAS' workspace): "
            "two runs without a loss round alike, and one with a migration as they do, as long as the library reduces in the same "
            "order over other devices (NCCL_ALGO, NCCL_PROTO)"
        )
    return (
        f"rounding on the device: not deterministic by its settings ({'; '.join(open_)}): two runs without a loss may round "
        "differently. The job is protected all the same: state is moved to the last bit, and a step that is done again may round "
        "as in another run"
    )
