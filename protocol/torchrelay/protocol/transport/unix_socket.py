"""Unix sockets at any path: the kernel takes 107 bytes, and the temporary folder of a batch system's job may be longer."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

MOST_BYTES = 107
"""Of a path to bind or connect to, see unix(7)."""


@contextmanager
def reachable(path: str) -> Iterator[str]:
    """Yield a path to the same socket that is short enough for `bind` or `connect`. Raises OSError if the folder is not there."""
    if len(os.fsencode(path)) <= MOST_BYTES:
        yield path
        return
    folder, name = os.path.split(path)
    fd = os.open(folder, os.O_PATH | os.O_DIRECTORY)
    try:
        yield f"/proc/self/fd/{fd}/{name}"
    finally:
        os.close(fd)
