"""Each claim of docs/security.md names its test."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "security.md").read_text()
BOUNDARIES = PAGE.partition("## What crosses which boundary")[2].partition("\n## ")[0]


def test_every_test_that_is_named_is_there_and_tests_something() -> None:
    named = re.findall(r"`(tests/[\w/]+\.py)`", PAGE)
    assert len(named) > 10
    for name in named:
        assert re.search(r"^def test_|^async def test_", (ROOT / name).read_text(), re.MULTILINE), name


def test_every_boundary_names_one() -> None:
    rows = [line for line in BOUNDARIES.splitlines() if line.startswith("| ") and "from, to" not in line]
    assert len(rows) >= 10
    for row in rows:
        assert "`tests/" in row.split("|")[-2], row
