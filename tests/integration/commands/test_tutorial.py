"""The commands of docs/tutorial.md, run in their order as a reader would, say what the page says."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from support.relay_run import LEAN

PAGE = Path(__file__).parents[3] / "docs" / "tutorial.md"
RUN_S = 300.0
_BLOCK = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def blocks() -> list[tuple[str, str]]:
    """Return the code blocks of the page: language and text."""
    return [(match[1], match[2]) for match in _BLOCK.finditer(PAGE.read_text())]


def missing(expected: str, said: str) -> list[str]:
    """Return the lines of a text block that nobody has said. `…` stands for anything."""
    lines = [line for line in expected.splitlines() if line]
    patterns = [".*".join(map(re.escape, line.split("…"))) for line in lines]
    return [line for line, pattern in zip(lines, patterns) if not re.search(pattern, said)]


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
    for language, text in blocks():
        if language == "python":
            (tmp_path / "train.py").write_text(text)
        elif language == "sh":
            done = subprocess.run(
                ["bash", "-euo", "pipefail", "-c", text],
                cwd=tmp_path,
                env=environment,
                capture_output=True,
                text=True,
                timeout=RUN_S,
                check=False,
            )
            told = done.stdout + done.stderr
            assert done.returncode == 0, f"{text}\n{told}"
            commands += 1
        elif language == "text":
            assert missing(text, told) == [], told
    assert commands == 5
