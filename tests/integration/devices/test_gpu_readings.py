"""`make gpu-check` compares what the agent reads with nvidia-smi: here with a driver in C and an nvidia-smi in sh."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from support.fake_machines import fake_machine

from torchrelay.agent.fake_machine.machine import ENV_STATE

pytestmark = pytest.mark.core

FOLDER = Path(__file__).parents[3] / "scripts" / "gpu_check"
SECTION = (
    "import sys, readings; found = readings.agree(); print(found.facts, found.problems); sys.exit(bool(found.problems))"
)
ROWS = [
    f"GPU-fa4e0000-0000-0000-0000-{n:012d}, 00000000:{0x10 + n:02x}:00.0, {celsius}, {width}, 16"
    for n, celsius, width in ((0, 45, 16), (1, 47, 16))
]


def check(folder: Path, rows: list[str]) -> subprocess.CompletedProcess[str]:
    machine = fake_machine(folder / "machine")
    smi = folder / "bin" / "nvidia-smi"
    smi.parent.mkdir()
    smi.write_text("#!/bin/sh\ncat <<EOT\n" + "\n".join(rows) + "\nEOT\n")
    smi.chmod(0o755)
    variables = {
        "LD_LIBRARY_PATH": str(machine.library.parent),
        ENV_STATE: str(machine.state),
        "PATH": f"{smi.parent}:{os.environ['PATH']}",
        "PYTHONPATH": str(FOLDER),
    }
    command = [sys.executable, "-c", SECTION]
    return subprocess.run(command, env={**os.environ, **variables}, capture_output=True, text=True, check=False)


def test_equal_readings_agree(tmp_path: Path) -> None:
    done = check(tmp_path, ROWS)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "gpu-temperature-margin" in done.stdout


@pytest.mark.parametrize(
    ("rows", "says"),
    [
        (ROWS[:1], "nvidia-smi ['GPU-fa4e0000-0000-0000-0000-000000000000']"),
        ([ROWS[0].replace(" 45,", " 75,"), ROWS[1]], "45 C and not 75 C"),
        ([ROWS[0], ROWS[1].replace(" 16, 16", " 8, 16")], "1 of its lanes and not 8 of 16"),
        ([ROWS[0].replace(":10:", ":99:"), ROWS[1]], "and not 00000000:99:00.0"),
    ],
)
def test_each_difference_fails_the_check(tmp_path: Path, rows: list[str], says: str) -> None:
    done = check(tmp_path, rows)
    assert says in done.stdout, done.stdout + done.stderr
    assert done.returncode == 1
