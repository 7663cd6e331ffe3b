"""Where what rewriting has made is kept from one process to the next. Standard library only."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path


def code_folder(environ: Mapping[str, str]) -> Path | None:
    """Return the folder for rewritten code, below the user's cache folder; None if that has no absolute path."""
    base = environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
    return Path(base, "torchrelay", "code") if os.path.isabs(base) else None
