"""The committed protocol buffer code is what relay.proto gives."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

SCRIPT = Path(__file__).resolve().parents[3] / "scripts" / "generate_proto.py"


def test_the_generated_code_is_up_to_date() -> None:
    done = subprocess.run([sys.executable, str(SCRIPT), "--check"], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
