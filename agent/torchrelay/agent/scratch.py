"""What a process has left behind that was killed while it took a rank over."""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping
from pathlib import Path

from torchrelay.protocol.scratch import scratch_prefix, temporary_folder


def remove_scratch(pid: int, environment: Mapping[str, str]) -> None:
    """Removes the folders of a process that has ended. /tmp is everyone's: another user's stay, and so do links."""
    for folder in Path(temporary_folder(environment)).glob(f"{scratch_prefix(pid)}*"):
        try:
            found = folder.lstat()
        except OSError:
            continue
        if not folder.is_symlink() and found.st_uid == os.getuid():
            shutil.rmtree(folder, ignore_errors=True)
