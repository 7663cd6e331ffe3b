"""Where a process that takes a rank over keeps copies of files that the script writes in its set-up, until it is in."""

from __future__ import annotations

import os
from collections.abc import Mapping

SYSTEM_FOLDERS = ("/tmp", "/var/tmp")


def temporary_folder(environment: Mapping[str, str]) -> str:
    """Without the module tempfile, whose names the script counts on."""
    places = (environment.get("TMPDIR"), *SYSTEM_FOLDERS)
    return next((place for place in places if place and os.path.isdir(place)), ".")


def scratch_prefix(pid: int) -> str:
    """How such a folder's name begins. Who ends the process removes it: nobody else would."""
    return f"torchrelay-{pid}-"
