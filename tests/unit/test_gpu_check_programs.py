"""What the GPU check calls of the backend is there: its programs run where a GPU is, and CI has none."""

from __future__ import annotations

import re
from pathlib import Path

from torchrelay.shim.backends.nccl import Nccl

PROGRAM = Path(__file__).resolve().parents[2] / "scripts" / "gpu_check" / "programs" / "lost_peers.py"


def test_the_survivor_of_killed_peers_calls_what_the_backend_has() -> None:
    called = set(re.findall(r"\bbackend\.(\w+)", PROGRAM.read_text()))
    assert {"free", "await_freed", "check_device"} <= called
    assert sorted(name for name in called if not hasattr(Nccl, name)) == []
