"""The commands of docs/tutorial.md, run in their order as a reader would, say what the page says."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest
from support.relay_run import LEAN
from support.tutorial import blocks, missing, typed

pytestmark = pytest.mark.core

RUN_S = 300.0


def test_a_line_that_nobody_said_is_missing() -> None:
    assert missing("done in … s\nall well\n", "torchrelay: done in 3 s\n") == ["all well"]


@pytest.mark.timeout(3 * RUN_S)
def test_each_command_of_the_tutorial_says_what_the_page_says(tmp_path: Path) -> None:
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("TORCHRELAY_")}
    environment = inherited | {
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        "TORCHRELAY_STATE_DIR": str(tmp_path / "state"),
        "TORCHRELAY_HISTORY_DIR": str(tmp_path / "history"),
        "PYTHONPATH": str(LEAN),
        "OMP_NUM_THREADS": "1",
        "COLUMNS": "200",
    }
    told, commands = "", 0
    for language, text in blocks("tutorial.md"):
        if language == "python":
            (tmp_path / "train.py").write_text(text)
        elif language == "sh":
            told = typed(text, tmp_path, environment, RUN_S)
            commands += 1
        elif language == "text":
            assert missing(text, told) == [], told
    assert commands == 5
