"""`torchrelay check`: what the script writes in its few steps must not be taken for the results of a run.

Files that exist are opened for writing as scratch copies, as a joiner's are, and what the script removes or replaces stays, out
of its sight. What is made anew is made where the script wants it, so that it is found there by any means, and written down
for the command to remove. Not covered: what C code opens by itself (torch.save is).
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

from torchrelay.shim.instrument.code_cache import default_folder
from torchrelay.shim.set_up.files_seen import FilesSeen
from torchrelay.shim.set_up.scratch_files import JoinerFiles

_WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT


class Traceless:
    """`list_path`: gets one line for each file and folder that is made, as JSON would be too late after a SIGKILL."""

    def __init__(self, list_path: Path) -> None:
        self._list = os.open(list_path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        self._files = JoinerFiles(str(list_path.parent), FilesSeen(), in_children=True)
        kept = default_folder()
        ours = () if kept is None else (os.fsencode(kept.parent),)
        self._not_its_own = (b"/dev/", b"/proc/", *ours)

    def start(self) -> None:
        """From here to the end of the process."""
        self._files.start()
        sys.addaudithook(self._on_event)

    def torch_imported(self, torch: ModuleType) -> None:
        self._files.torch_imported(torch)

    def _on_event(self, event: str, args: tuple[Any, ...]) -> None:
        if event == "open":
            path, _, flags = args
            if isinstance(flags, int) and flags & _WRITES and isinstance(path, (str, bytes)):
                self._note(path)
        elif event == "os.mkdir" and isinstance(args[0], (str, bytes)):
            self._note(args[0])
        elif event in ("os.rename", "os.link", "os.symlink") and isinstance(args[1], (str, bytes)):
            self._note(args[1])

    def _note(self, path: str | bytes) -> None:
        name = os.path.abspath(os.fsencode(path))
        if not os.path.lexists(name) and b"\n" not in name and not name.startswith(self._not_its_own):
            os.write(self._list, name + b"\n")
