"""What a shell offers behind `kubectl torchrelay`: kubectl 1.26 and later runs `kubectl_complete-torchrelay` for it."""

from __future__ import annotations

import contextlib
import io
import os
import shlex
import sys
from collections.abc import Sequence

import typer

from torchrelay.cli.cluster.app import app

NO_FILES = ":4"
"""Ends what is offered, as kubectl reads it: nothing else fits, files neither."""
_VARIABLE = "_TORCHRELAY_PLUGIN_COMPLETE"


def main(words: Sequence[str] | None = None) -> None:
    """Print what fits in place of the last word, one a line with what it means."""
    *before, last = (sys.argv[1:] if words is None else list(words)) or [""]
    typed = f"{shlex.join(['kubectl-torchrelay', *before])} {last}"
    # They are written as for fish, which is told the most: a word, a tab, and what it means.
    os.environ |= {
        _VARIABLE: "complete_fish",
        "_TYPER_COMPLETE_ARGS": typed,
        "_TYPER_COMPLETE_FISH_ACTION": "get-args",
        "COLUMNS": "10000",  # what a word means stays on its line
    }
    offered = io.StringIO()
    with contextlib.redirect_stdout(offered), contextlib.suppress(SystemExit):
        typer.main.get_command(app).main([], prog_name="kubectl-torchrelay", complete_var=_VARIABLE)
    print(*filter(None, offered.getvalue().splitlines()), NO_FILES, sep="\n")


if __name__ == "__main__":
    main()
