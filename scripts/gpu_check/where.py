"""The device that the check runs on, and what its processes are started with."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PARTS = ("protocol", "shim", "agent", "controller", "webhook", "dashboard", "cli")
ONE_GPU = Path(__file__).with_name("one_gpu")
NCCL_ON_ONE_GPU = {
    "NCCL_SOCKET_IFNAME": "lo",
    "NCCL_IB_DISABLE": "1",
    "NCCL_NVLS_ENABLE": "0",
    "NCCL_MNNVL_ENABLE": "0",
    "NCCL_ALGO": "Ring",
    "NCCL_PROTO": "Simple",
}


class Device(Enum):
    CUDA = "cuda"
    CPU = "cpu"  # goes through the same motions, to check the check


@dataclass(frozen=True)
class Where:
    device: Device
    out: Path
    quick: bool
    """Smaller programs: for an imitated GPU, and for the CPU."""

    def environment(self) -> dict[str, str]:
        """Return the environment of all processes that the check starts."""
        return environment(os.environ)


def python_path(before: str) -> str:
    """Return a path on which torchrelay's source tree is found, for a Python where it is not installed."""
    folders = [str(ONE_GPU), *(str(ROOT / part) for part in PARTS)]
    return os.pathsep.join([*folders, before] if before else folders)


def environment(own: Mapping[str, str]) -> dict[str, str]:
    return {
        **own,
        **NCCL_ON_ONE_GPU,
        "PYTHONPATH": python_path(own.get("PYTHONPATH", "")),
        "CUBLAS_WORKSPACE_CONFIG": ":4096:8",
        "OMP_NUM_THREADS": own.get("OMP_NUM_THREADS", "1"),
    }


def use_source_tree() -> None:
    """Make torchrelay importable in this process."""
    sys.path[:0] = [str(ROOT / part) for part in PARTS]
