"""`make gpu-check` as a whole, on the imitated GPU: what a machine with a GPU runs has to be right at its first try."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

CHECK = Path(__file__).resolve().parents[2] / "scripts" / "gpu_check"
SECTIONS = [
    "versions",
    "readings",
    "speed",
    "killed-peers",
    "two-groups",
    "step-cost",
    "transfer",
    "nccl",
    "gloo",
    "corpus",
    "alive",
]


@pytest.mark.timeout(1800)
def test_every_section_is_done_and_finds_nothing_wrong(tmp_path: Path) -> None:
    environment = os.environ | {"TORCHRELAY_STATE_DIR": str(tmp_path / "state")}
    command = [sys.executable, str(CHECK), "--quick", "--out", str(tmp_path / "out")]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, cwd=tmp_path, check=False)
    results = [json.loads(line) for line in (tmp_path / "out" / "results.jsonl").read_text().splitlines()]
    assert [(r["section"], r["problems"]) for r in results] == [(name, []) for name in SECTIONS], done.stdout
    assert done.returncode == 0, done.stderr
    facts = {result["section"]: result["facts"] for result in results}
    assert facts["killed-peers"]["peers_killed"] == 3
    assert all(facts["nccl"][kind]["bitwise_equal"] for kind in ("planned", "kill", "stop"))
