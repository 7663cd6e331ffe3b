"""The command that measures the relay score, end to end, on a few cells of programs that users have most."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ENTRIES = ("epochs", "trainer-class", "own-sampler")
CELLS = 3
RUN_S = 360.0


def relay_score(out: Path, *options: str, entries: tuple[str, ...] = ENTRIES) -> tuple[dict[str, Any], str]:
    chosen = [f"--entry={name}" for name in entries]
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
def test_a_spread_of_cells_is_identical_and_a_second_run_adds_to_it(tmp_path: Path) -> None:
    score, told = relay_score(tmp_path, f"--cells={CELLS}", "--seed=3")
    assert score["cells"] == CELLS
    assert [(r["cell"], r["reason"]) for r in score["results"] if r["outcome"] != "identical"] == []
    assert {r["cell"]["entry"] for r in score["results"]} == set(ENTRIES)
    assert f"{CELLS} of {CELLS} cells identical" in told
    assert (tmp_path / "relay-score.png").stat().st_size > 1000
    again, _ = relay_score(tmp_path, f"--cells={CELLS}", "--seed=3", "--resume")
    assert again["results"] == score["results"]


@pytest.mark.timeout(2 * RUN_S)
def test_cells_that_share_a_run_are_struck_one_after_the_other(tmp_path: Path) -> None:
    chosen = ("--kind=kill", "--rank=last", "--phase=first", "--phase=gate", "--phase=last", "--full")
    score, _ = relay_score(tmp_path, *chosen, "--together=3", entries=("trainer-class",))
    assert [(r["cell"]["phase"], r["outcome"], r["together"]) for r in score["results"]] == [
        ("first", "identical", 3),
        ("gate", "identical", 3),
        ("last", "identical", 3),
    ]
    assert score["fell_short"] == []
