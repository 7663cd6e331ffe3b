from __future__ import annotations

import io
import os
import pty
from collections.abc import Iterator

import pytest
from rich.text import Text

from torchrelay.cli.display import bottom_line, narrate
from torchrelay.cli.display.summary import RunSummary
from torchrelay.cli.display.teller import Teller
from torchrelay.protocol.events import ProgressMade

MADE = ProgressMade(steps=3, steps_per_s=1.0, ranks=2, spares=1)


@pytest.fixture
def terminal() -> Iterator[tuple[int, int]]:
    """Both ends of one, as descriptors: what holds it, and what a program writes to."""
    ends = pty.openpty()
    yield ends
    os.close(ends[1])


def test_a_terminal_that_is_closed_takes_the_live_line_along_and_nothing_else(
    terminal: tuple[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bottom_line, "is_possible", lambda stream, environment: True)
    holds, written = terminal
    with os.fdopen(written, "w", closefd=False) as stream:
        teller = Teller(stream, {"TERM": "xterm"}, quiet=False)
        teller.event(RunSummary(), RunSummary(), MADE)
        assert teller.is_live
        os.close(holds)
        teller.event(RunSummary(), RunSummary(), MADE)
        assert not teller.is_live
        teller.say(["a line that nobody reads"])
        teller.close()


def test_its_lines_stand_out_among_those_of_the_script_and_tables_stay_as_they_are() -> None:
    stream = io.StringIO()
    Teller(stream, {}, quiet=True).say(
        [narrate.line("rank 1 is lost", "red"), Text(), narrate.hint("torchrelay status")]
    )
    assert stream.getvalue() == "torchrelay: error: rank 1 is lost\n\ntorchrelay: hint: torchrelay status\n"
