"""Waiting for a file descriptor, whatever its number: `select.select` takes none above 1023, and a script may have opened more."""

from __future__ import annotations

import select


def is_readable(descriptor: int, within_s: float = 0.0) -> bool:
    """Return whether within the time there is something to read, or the end of the stream."""
    waiting = select.poll()
    waiting.register(descriptor, select.POLLIN)
    return bool(waiting.poll(within_s * 1000.0))
