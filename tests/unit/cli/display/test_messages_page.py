"""docs/messages.md has every message of a run as it is printed, and what it tells to paste works."""

from __future__ import annotations

import inspect
import re
import shlex

import pytest
from support.command_lines import WrongCommandError, read
from support.repository_script import script

from torchrelay.cli.display import narrate

page = script("generate_messages_page")
HINTS = sorted(set(re.findall(r"hint: ((?:kubectl )?torchrelay .*)", page.sections())))


def test_the_page_is_up_to_date() -> None:
    assert page.PART.text() == page.PART.path.read_text("utf-8"), "run: python scripts/generate_messages_page.py"


def test_each_event_that_is_told_is_on_the_page() -> None:
    told = set(re.findall(r"case events\.(\w+)\(", inspect.getsource(narrate)))
    shown = {type(example.told[-1]).__name__ for examples in page.EXAMPLES.values() for example in examples}
    missing = told - shown - {"CoverageKnown"}  # its line is in the report of the level
    assert missing == set()


def test_each_example_says_something() -> None:
    silent = [x.when for examples in page.EXAMPLES.values() for x in examples if not page.lines_of(x)]
    assert silent == []


@pytest.mark.parametrize("hint", HINTS)
def test_what_a_hint_says_is_a_command(hint: str) -> None:
    """It has all words and options that the program asks for, and none that it does not know."""
    read(shlex.split(hint))


@pytest.mark.parametrize(
    "hint",
    ["torchrelay spares --nowhere", "torchrelay migrate --rank 1", "kubectl torchrelay quarantine clera NODE"],
)
def test_a_hint_that_would_be_refused_is_found(hint: str) -> None:
    with pytest.raises(WrongCommandError):
        read(shlex.split(hint))


def test_there_are_hints() -> None:
    assert {h.split()[1] for h in HINTS if h.startswith("torchrelay ")} == {
        "checkpoint",
        "explain",
        "history",
        "quarantine",
        "report",
        "run",
        "spares",
        "status",
    }
    of_a_cluster = {h.split()[2] for h in HINTS if h.startswith("kubectl ")}
    assert {"status", "quarantine", "spares", "history", "explain", "dashboard"} <= of_a_cluster
