"""The demo and the GPU check, run as a user runs them."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch

ROOT = Path(__file__).resolve().parents[3]


def run(script: str, *args: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    environment = os.environ | {"TORCHRELAY_STATE_DIR": str(cwd / "state")}
    return subprocess.run(
        [sys.executable, str(ROOT / script), *args], cwd=cwd, env=environment, capture_output=True, text=True
    )


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_the_demo_survives_three_failures_bitwise_and_shows_them(tmp_path: Path) -> None:
    done = run("examples/demo.py", "--out", str(tmp_path / "out"), "--", "--epochs", "2", cwd=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    assert re.search(r"^weights bitwise equal +- +yes +NO", done.stdout, re.M), done.stdout
    assert (tmp_path / "out" / "demo.png").stat().st_size > 20_000
    summary = json.loads((tmp_path / "out" / "torchrelay" / "stdout.txt").read_text().splitlines()[-1])
    assert sorted(r for m in summary["migrations"] for r in m["ranks"]) == [0, 1, 2]
    assert not list((tmp_path / "state").glob("*")), "nothing of the run is left"


def test_a_demo_whose_training_fails_says_where_to_look(tmp_path: Path) -> None:
    done = run("examples/demo.py", "--out", str(tmp_path / "out"), "--", "--heads", "3", cwd=tmp_path)
    assert done.returncode == 1
    assert "undisturbed: exit code 1" in done.stderr
    assert str(tmp_path / "out" / "undisturbed") in done.stderr


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_the_gpu_check_says_that_there_is_no_gpu(tmp_path: Path) -> None:
    done = run("scripts/gpu_check", cwd=tmp_path)
    assert done.returncode == 0
    assert "no CUDA GPU" in done.stdout
