"""The library of the fake machine is built once for a whole run of tests."""

from __future__ import annotations

import functools
import tempfile
from pathlib import Path

from torchrelay.agent.fake_machine.machine import FakeMachine, build_library


@functools.cache
def _library() -> tuple[tempfile.TemporaryDirectory[str], Path]:
    folder = tempfile.TemporaryDirectory(prefix="torchrelay-nvml-")
    path = Path(folder.name) / "libnvidia-ml.so.1"
    build_library(path)
    return folder, path


def fake_machine(root: Path, gpus: int = 2) -> FakeMachine:
    machine = FakeMachine(root)
    machine.make(gpus, _library()[1])
    return machine
