"""A page of documentation that is followed as a reader would: its code blocks, and what its text blocks say that is printed."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Mapping
from pathlib import Path

DOCS = Path(__file__).resolve().parents[2] / "docs"
_BLOCK = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def blocks(page: str) -> list[tuple[str, str]]:
    """Return the code blocks of the page: language and text."""
    return [(match[1], match[2]) for match in _BLOCK.finditer((DOCS / page).read_text())]


def missing(expected: str, said: str) -> list[str]:
    """Return the lines of a text block that nobody has said. `…` stands for anything."""
    lines = [line for line in expected.splitlines() if line]
    patterns = [".*".join(map(re.escape, line.split("…"))) for line in lines]
    return [line for line, pattern in zip(lines, patterns) if not re.search(pattern, said)]


def typed(text: str, folder: Path, environment: Mapping[str, str], limit_s: float) -> str:
    """Run a block of commands, and return what they said. A command that fails is an AssertionError."""
    done = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", text],
        cwd=folder,
        env=dict(environment),
        capture_output=True,
        text=True,
        timeout=limit_s,
        check=False,
    )
    told = done.stdout + done.stderr
    assert done.returncode == 0, f"{text}\n{told}"
    return told
