"""How often the host of a protected job waits for its device: each wait keeps the device idle."""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
from pathlib import Path

PROGRAM = Path(__file__).parent / "programs" / "waits.py"
WAITS = 8
"""In a step of one rank, as it was measured: who adds a wait is to know it."""
TORCHRELAY = [sys.executable, "-m", "torchrelay.cli", "run", "--nproc-per-node", "1", "--spares", "0"]


def waits_in_a_step(out: Path, layers: int) -> float:
    out.mkdir()
    command = [*TORCHRELAY, "--buddy-every", "0", "--cost-limit", "0", str(PROGRAM), str(out), str(layers)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=200, check=False, cwd=out)
    assert done.returncode == 0, done.stderr[-3000:]
    assert "training loop " in done.stderr, "the job has to be protected"
    assert "no longer protected" not in done.stderr
    return statistics.median(json.loads((out / "waits.json").read_text())[10:])


def test_a_step_waits_no_more_often_for_more_buffers(tmp_path: Path) -> None:
    few, many = (waits_in_a_step(tmp_path / str(layers), layers) for layers in (2, 20))
    assert few == many == WAITS
