"""Shows a run on stderr: one live line on a terminal, and notes above it; stdout is the script's."""

from __future__ import annotations

import io
import time
from collections.abc import Iterable, Mapping
from contextlib import suppress
from typing import TextIO

from rich.console import Console, RenderableType
from rich.text import Text

from torchrelay.cli.display import bottom_line, narrate, render
from torchrelay.cli.display.summary import RunSummary
from torchrelay.protocol import events
from torchrelay.protocol.logs.log_lines import LogLines, LogPart
from torchrelay.protocol.logs.standard_streams import unfailing

_MOVES_THE_LINE = (
    events.JobStarted,
    events.ProgressMade,
    events.PhaseChanged,
    events.MigrationProgressed,
    events.MigrationFinished,
)
PREFIX = "torchrelay: "
"""Before each line that stands among a script's."""
MINIMUM_WIDTH = 100
"""Where no terminal says how wide it is, tables are not squeezed."""


def make_console(stream: TextIO) -> Console:
    """Make a console that fits the terminal. In a file or a pipe, lines are not broken."""
    if stream.isatty():
        return Console(file=stream, highlight=False)
    return Console(file=stream, highlight=False, soft_wrap=True, width=MINIMUM_WIDTH)


def among_others(text: RenderableType) -> RenderableType:
    """Return a line as it stands among lines of a script. Tables and empty lines stay as they are."""
    return Text.assemble((PREFIX, "bold"), text) if isinstance(text, Text) and text.plain else text


class Teller:
    """Tells a run on a terminal or in a log, among the lines of its script.

    `quiet`: only what is asked for with `say`; `verbose`: details, too.
    """

    def __init__(self, stream: TextIO, environment: Mapping[str, str], quiet: bool, verbose: bool = False) -> None:
        self._console = make_console(unfailing(stream))
        self._quiet = quiet
        self._verbose = verbose
        self._lines = LogLines.from_environ(LogPart.COMMAND, environment)
        live = not quiet and not self._lines.is_json and bottom_line.is_possible(stream, environment)
        self._bottom = bottom_line.BottomLine(stream.fileno()) if live else None

    @property
    def is_live(self) -> bool:
        """Return whether there is a line that shows progress."""
        return self._bottom is not None

    def event(self, before: RunSummary, after: RunSummary, event: events.Occurrence) -> None:
        if self._quiet:
            return
        if self._bottom is None or not isinstance(event, events.MigrationProgressed):  # the line has it
            self.say(narrate.notes(before, event, self._verbose))
        if self._bottom is not None and isinstance(event, _MOVES_THE_LINE):
            self._show(after)

    def say(self, lines: Iterable[RenderableType]) -> None:
        for text in lines:
            if self._lines.is_json:
                self._say_as_json(text)
            else:
                self._console.print(among_others(text))

    def _show(self, summary: RunSummary) -> None:
        assert self._bottom is not None
        try:
            self._bottom.show(self._ansi(render.progress_line(summary), self._bottom.columns))
        except OSError:  # the terminal is gone, and the job goes on without it
            self._bottom = None

    def _say_as_json(self, text: RenderableType) -> None:
        """Print a text as a line of JSON, without tables and empty lines: those are for people. `--json-file` has what they say."""
        if isinstance(text, Text) and text.plain:
            styles = {str(span.style) for span in text.spans}
            level = "error" if "red" in styles else "warning" if "yellow" in styles else "info"
            told = text.plain.removeprefix(f"{level}: ")
            self._console.print(self._lines.json_line(level, told, time.time()), markup=False, soft_wrap=True)

    def close(self) -> None:
        """Remove the live line. To be called however the run ends."""
        if self._bottom is not None:
            with suppress(OSError):
                self._bottom.close()

    def _ansi(self, text: RenderableType, columns: int) -> str:
        buffer = io.StringIO()
        console = Console(file=buffer, force_terminal=True, width=columns, no_color=self._console.no_color)
        console.print(text, end="", no_wrap=True, overflow="ellipsis", crop=True)
        return buffer.getvalue()
