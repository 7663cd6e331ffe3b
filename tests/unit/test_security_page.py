"""Each claim of docs/security.md names its test."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "security.md").read_text()
NOBODY_HELD_BACK = "| nothing is held back from them |"


def section_of(heading: str) -> str:
    return PAGE.partition(f"## {heading}\n")[2].partition("\n## ")[0]


def rows_of(heading: str) -> list[str]:
    return [line for line in section_of(heading).splitlines() if line.startswith("| ")][1:]


def test_every_test_that_is_named_is_there_and_tests_something() -> None:
    """Each by its whole path: a name without one may be that of no file, or of two."""
    named = re.findall(r"`([^`\s]*test_\w+\.py)`", PAGE)
    assert len(named) > 10
    for name in named:
        assert name.startswith("tests/"), name
        assert re.search(r"^def test_|^async def test_", (ROOT / name).read_text(), re.MULTILINE), name


def test_who_is_not_trusted_with_everything_is_held_to_that_by_a_test() -> None:
    rows = rows_of("Who is trusted")
    assert len(rows) >= 7
    for row in rows:
        assert "`tests/" in row.split("|")[-2] or ("| everything" in row and row.endswith(NOBODY_HELD_BACK)), row


@pytest.mark.parametrize("heading", ["What crosses which boundary", "One job, and the others"])
def test_every_row_names_one(heading: str) -> None:
    rows = rows_of(heading)
    assert rows
    for row in rows:
        assert "`tests/" in row.split("|")[-2], row


@pytest.mark.parametrize("heading", ["Metrics", "Certificates, and how the authority is exchanged"])
def test_every_paragraph_that_claims_something_names_one(heading: str) -> None:
    """Lines that say how something is done, which end with the commands for it, claim nothing."""
    text = re.sub(r"```.*?```", "", section_of(heading), flags=re.DOTALL)
    paragraphs = [part for part in text.split("\n\n") if part.strip() and not part.rstrip().endswith(":")]
    assert paragraphs
    for paragraph in paragraphs:
        assert "`tests/" in paragraph, paragraph


def test_what_is_not_defended_against_names_one_wherever_it_says_what_is() -> None:
    """The other halves of these sentences: what can happen nevertheless needs no test."""
    for line in section_of("What is not defended against").splitlines():
        if re.search(r"nothing else|cannot stand in|no other one|is set only where", line):
            assert "`tests/" in line, line
