"""Each claim of docs/security.md names its test."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "security.md").read_text()
NOBODY_HELD_BACK = "| nothing is held back from them |"


def rows_of(heading: str) -> list[str]:
    section = PAGE.partition(f"## {heading}\n")[2].partition("\n## ")[0]
    return [line for line in section.splitlines() if line.startswith("| ")][1:]


def test_every_test_that_is_named_is_there_and_tests_something() -> None:
    """Each by its whole path: a name without one may be that of no file, or of two."""
    named = re.findall(r"`([^`\s]*test_\w+\.py)`", PAGE)
    assert len(named) > 10
    for name in named:
        assert name.startswith("tests/"), name
        assert re.search(r"^def test_|^async def test_", (ROOT / name).read_text(), re.MULTILINE), name


def test_every_boundary_names_one() -> None:
    rows = rows_of("What crosses which boundary")
    assert len(rows) >= 10
    for row in rows:
        assert "`tests/" in row.split("|")[-2], row


def test_who_is_not_trusted_with_everything_is_held_to_that_by_a_test() -> None:
    rows = rows_of("Who is trusted")
    assert len(rows) >= 7
    for row in rows:
        assert "`tests/" in row.split("|")[-2] or ("| everything" in row and row.endswith(NOBODY_HELD_BACK)), row
