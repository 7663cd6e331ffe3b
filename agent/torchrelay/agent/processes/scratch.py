"""Removes what a process has left behind that was killed while it took a rank over."""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping
from contextlib import suppress

from torchrelay.protocol.machine.scratch import scratch_prefix, temporary_folder


def remove_scratch(pid: int, environment: Mapping[str, str]) -> None:
    """Remove the folders of a process that has ended. /tmp is open to everyone: another user's folders stay, and so do links."""
    prefix = scratch_prefix(pid)
    with suppress(OSError), os.scandir(temporary_folder(environment)) as entries:
        # A pattern would stay in the caches of `re`, one for each process that there was.
        for folder in [entry for entry in entries if entry.name.startswith(prefix)]:
            with suppress(OSError):  # it is gone already
                if not folder.is_symlink() and folder.stat(follow_symlinks=False).st_uid == os.getuid():
                    shutil.rmtree(folder, ignore_errors=True)
