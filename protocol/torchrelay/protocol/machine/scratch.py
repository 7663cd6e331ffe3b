"""Where a process that takes a rank over keeps copies of files that the script writes in its set-up, until it is in."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping

SYSTEM_FOLDERS = ("/tmp", "/var/tmp")
SCRATCH = "torchrelay-"
_SCRATCH = re.compile(rf"{SCRATCH}[0-9]+-[0-9a-f]{{12}}")


def temporary_folder(environment: Mapping[str, str]) -> str:
    """Without the module tempfile, whose names the script counts on."""
    places = (environment.get("TMPDIR"), *SYSTEM_FOLDERS)
    return next((place for place in places if place and os.path.isdir(place)), ".")


def scratch_prefix(pid: int) -> str:
    """How such a folder's name begins. Whoever ends the process removes it; where that is gone, too, the next command does."""
    return f"{SCRATCH}{pid}-"


def is_scratch(name: str) -> bool:
    """Whether a folder of that name is such a folder, of whatever process: its number, and twelve random digits."""
    return _SCRATCH.fullmatch(name) is not None
