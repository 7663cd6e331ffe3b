"""What a shell offers where a command line names a job or a run: the names of existing ones."""

from __future__ import annotations

import os
from collections.abc import Iterable

SHOWN_CHARACTERS = 60
"""Of what is said of a word: a shell takes the second line for another word."""


def running_jobs(incomplete: str) -> list[tuple[str, str]]:
    """Return names and ids of this user's jobs that run here, each with its command."""
    from torchrelay.cli.folders import folder
    from torchrelay.cli.folders.shown_run import shown_command

    runs = folder.one_of_each(folder.state_folder(os.environ))
    return _offered(incomplete, ((word, shown_command(run.command)) for run in runs for word in (run.name, run.run_id)))


def kept_runs(incomplete: str) -> list[tuple[str, str]]:
    """Return names and ids of the kept runs, the newest first, each with its command."""
    from torchrelay.cli.folders import history
    from torchrelay.cli.folders.shown_run import shown_command

    heads = [run.head for run in history.kept_runs(history.history_folder(os.environ))]
    return _offered(incomplete, ((word, shown_command(h.command)) for h in heads for word in (h.name, h.run_id)))


def _offered(incomplete: str, found: Iterable[tuple[str, str]]) -> list[tuple[str, str]]:
    """Return each word once, with the first description that was given for it."""
    offered: dict[str, str] = {}
    for word, what in found:
        if word and word.startswith(incomplete):
            offered.setdefault(word, what[:SHOWN_CHARACTERS])
    return list(offered.items())
