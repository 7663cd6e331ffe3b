"""What people are shown of a run, beside its id: its command, and what it is called, since when, and where."""

from __future__ import annotations

import shlex
import time
from collections.abc import Iterator, Sequence

SECRET_OPTION = "--notify"
"""The URL of a webhook is what others need to post there."""
LEFT_OUT = "URL"


def shown_command(words: Sequence[str]) -> str:
    """Return the command as a shell takes it, without the URL that only its user should know."""
    return shlex.join(("torchrelay", *_without_secrets(words)))


def clock(time_s: float) -> str:
    """Return a time of day, with its date."""
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(time_s))


def name_start_and_folder(name: str, started_s: float, working_folder: str) -> str:
    """Return these in words, without those that are not known. `started_s` is 0 where it is not known."""
    began = f"began {clock(started_s)}" if started_s else ""
    return ", ".join(filter(None, (name, began, f"in {working_folder}" if working_folder else "")))


def _without_secrets(words: Sequence[str]) -> Iterator[str]:
    for before, word in zip(("", *words), words):
        if before == SECRET_OPTION:
            yield LEFT_OUT
        elif word.startswith(f"{SECRET_OPTION}="):
            yield f"{SECRET_OPTION}={LEFT_OUT}"
        else:
            yield word
