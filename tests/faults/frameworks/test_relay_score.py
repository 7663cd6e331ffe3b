"""The command that measures the relay score, end to end, on a few cells of programs that users have most."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ENTRIES = ("epochs", "own-sampler")
CELLS = 4
RUN_S = 360.0


def relay_score(out: Path, *options: str) -> tuple[dict[str, Any], str]:
    chosen = [f"--entry={name}" for name in ENTRIES]
    done = subprocess.run(
        [sys.executable, "-m", "torchrelay.cli", "bench", "relay-score", f"--out={out}", *chosen, *options],
        capture_output=True,
        text=True,
        timeout=RUN_S,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return json.loads((out / "relay-score.json").read_text()), done.stdout


@pytest.mark.timeout(2 * RUN_S)
def test_a_spread_of_cells_is_identical_two_of_them_in_one_run_and_a_second_command_adds_to_it(tmp_path: Path) -> None:
    chosen = (f"--cells={CELLS}", "--seed=0", "--together=2")
    score, told = relay_score(tmp_path, *chosen)
    assert score["cells"] == CELLS
    assert [(r["cell"], r["reason"]) for r in score["results"] if r["outcome"] != "identical"] == []
    assert {r["cell"]["entry"] for r in score["results"]} == set(ENTRIES)
    assert [r["together"] for r in score["results"] if r["cell"]["entry"] == "epochs"] == [2, 2]
    assert {r["cell"]["kind"]: r["together"] for r in score["results"]}["planned"] == 1
    assert score["fell_short"] == []
    assert f"{CELLS} of {CELLS} cells identical" in told
    assert (tmp_path / "relay-score.png").stat().st_size > 1000
    again, _ = relay_score(tmp_path, *chosen, "--resume")
    assert again["results"] == score["results"]
