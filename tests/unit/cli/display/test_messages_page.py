"""docs/messages.md has every message of a run as it is printed, and what it tells to paste works."""

from __future__ import annotations

import inspect
import re
import shlex

import pytest
import typer
from support.repository_script import script

from torchrelay.cli.app.program import app
from torchrelay.cli.display import narrate

page = script("generate_messages_page")
HINTS = sorted(set(re.findall(r"hint: (torchrelay .*)", page.sections())))


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
    """Its words and options are known; `--help` keeps it from being done."""
    _, command, *rest = shlex.split(hint)
    words = (
        [command, "--help", *rest] if command == "run" else [command, *rest, "--help"]
    )  # behind a script it is the script's
    assert typer.main.get_command(app)(words, standalone_mode=False) == 0


def test_a_hint_with_an_option_that_is_not_there_is_found() -> None:
    with pytest.raises(typer.TyperException, match="--nowhere"):
        typer.main.get_command(app)(["spares", "--nowhere", "--help"], standalone_mode=False)


def test_there_are_hints() -> None:
    assert {h.split()[1] for h in HINTS} == {
        "checkpoint",
        "explain",
        "history",
        "quarantine",
        "report",
        "run",
        "spares",
        "status",
    }
