"""Where a process that takes a rank over keeps copies of files that the script writes in its set-up, until it is in."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping

SYSTEM_FOLDERS = ("/tmp", "/var/tmp")
SCRATCH = "torchrelay-"
_SCRATCH = re.compile(rf"{SCRATCH}[0-9]+-[0-9a-f]{{12}}")


def temporary_folder(environment: Mapping[str, str]) -> str:
    """Return the system's temporary folder. The module tempfile is not used, since the script counts on the names that it makes."""
    places = (environment.get("TMPDIR"), *SYSTEM_FOLDERS)
    return next((place for place in places if place and os.path.isdir(place)), ".")


def scratch_prefix(pid: int) -> str:
    """Return how the name of such a folder of process `pid` begins.

    The program that ends the process removes the folder. If that program is gone too, the next command does.
    """
    return f"{SCRATCH}{pid}-"


def is_scratch(name: str) -> bool:
    """Return whether a folder of that name is a scratch folder of any process: the prefix, its number, and twelve random digits."""
    return _SCRATCH.fullmatch(name) is not None
