"""The measurement of the controller in a large cluster comes to its end: in small, and without a look at its figures."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

BENCH = Path(__file__).parents[3] / "bench" / "controller_scale.py"


def test_agents_of_other_processes_train_and_a_loss_is_decided() -> None:
    sizes = ["--jobs", "2", "--ranks", "2", "--kills", "1", "--seconds", "0.2", "--processes", "1"]
    done = subprocess.run(
        [sys.executable, str(BENCH), *sizes], capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr
    measured = json.loads(done.stdout)
    assert measured["outcomes"] == {"committed": 1}
    assert measured["decision_s"]["count"] == 1
    assert measured["connections"] >= 2 * 3
