"""Tokens of people who may ask a dashboard for something."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from pathlib import Path

log = logging.getLogger(__name__)

SHORTEST_TOKEN = 16
"""Letters and digits."""

Tokens = Callable[[], Mapping[str, str]]
"""Returns the tokens by the names of who has them; empty if all is read-only."""


def is_token(text: str) -> bool:
    return len(text) >= SHORTEST_TOKEN and text.isascii()


def one_token(token: str) -> Tokens:
    """Return the tokens of a dashboard that has one at most, whose holder has no name. `token`: empty if there is none."""
    return lambda: {"": token} if token else {}


class TokenFolder:
    """A mounted Secret: each of its keys is a person's name, and the value that person's token.

    It is read for each request, so a token that is taken out of the Secret is of no use once the kubelet has seen that.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._said: set[str] = set()

    def __call__(self) -> Mapping[str, str]:
        """Read the tokens. One that cannot be read or is too short counts as none, which is logged once."""
        found = {}
        for path in self._files():
            try:
                token = path.read_text("utf-8").strip()
            except (OSError, UnicodeDecodeError) as e:
                self._say(f"the token of {path.name} cannot be read: {e}")
                continue
            if is_token(token):
                found[path.name] = token
            else:
                self._say(f"the token of {path.name} is not taken: give {SHORTEST_TOKEN} letters and digits at least")
        return found

    def _files(self) -> list[Path]:
        """Return the keys' files. What begins with a dot is the kubelet's."""
        try:
            return sorted(path for path in self._folder.iterdir() if not path.name.startswith("."))
        except OSError as e:
            self._say(f"nobody may ask for anything on the dashboard: {e}")
            return []

    def _say(self, text: str) -> None:
        if text not in self._said:
            self._said.add(text)
            log.warning("%s", text)
