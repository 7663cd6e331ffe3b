"""What a shell offers behind `kubectl torchrelay`: kubectl 1.26 and later runs `kubectl_complete-torchrelay` for it."""

from __future__ import annotations

import asyncio
import contextlib
import io
import os
import shlex
import sys
from collections.abc import Sequence

import typer

from torchrelay.protocol.errors import TorchrelayError

TIMEOUT_S = 2.0
"""Somebody waits at a prompt."""
NO_FILES = ":4"
"""Ends what is offered, as kubectl reads it: nothing else fits, files neither."""
_VARIABLE = "_TORCHRELAY_PLUGIN_COMPLETE"


def jobs(ctx: typer.Context, incomplete: str) -> list[str]:
    """Names of the TrainingJobs of the namespace."""
    return _names(ctx, "JOBS", incomplete)


def migrations(ctx: typer.Context, incomplete: str) -> list[str]:
    """Names of the Migrations of the namespace."""
    return _names(ctx, "MIGRATIONS", incomplete)


def quarantines(ctx: typer.Context, incomplete: str) -> list[str]:
    """Names of the Quarantines of the cluster."""
    return _names(ctx, "QUARANTINES", incomplete)


def _names(ctx: typer.Context, kind: str, incomplete: str) -> list[str]:
    """Return none where the cluster does not answer soon, or refuses: the shell then offers none."""
    given = ctx.params
    try:
        from torchrelay.cli.cluster import api

        async def ask() -> list[str]:
            async with api.Cluster(given.get("namespace") or "", given.get("context") or "") as cluster:
                found = await asyncio.wait_for(cluster.all(getattr(api, kind)), TIMEOUT_S)
            return sorted(str(one["metadata"]["name"]) for one in found)

        return [name for name in asyncio.run(ask()) if name.startswith(incomplete)]
    except (TorchrelayError, asyncio.TimeoutError):
        return []


def main(words: Sequence[str] | None = None) -> None:
    """Print what fits in place of the last word, one a line with what it means."""
    from torchrelay.cli.cluster.app import app

    *before, last = (sys.argv[1:] if words is None else list(words)) or [""]
    typed = f"{shlex.join(['kubectl-torchrelay', *before])} {last}"
    # As for fish, which is told the most: a word, a tab, and what it means.
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
