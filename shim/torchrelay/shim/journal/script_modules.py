"""The script's own part of the interpreter: its frames, and the namespaces of its modules."""

from __future__ import annotations

import sys
from types import FrameType
from typing import Any

from torchrelay.shim.capture.values.base_types import file_of
from torchrelay.shim.script import sites


def script_frames(innermost: FrameType | None) -> list[FrameType]:
    """Return the frames of rewritten files, outermost first."""
    found = []
    frame = innermost
    while frame is not None:
        if frame.f_code.co_filename in sites.INSTRUMENTED_FILES:
            found.append(frame)
        frame = frame.f_back
    return found[::-1]


class ScriptModules:
    """Namespaces of the script's own modules; looked up again only when modules were imported, or loaded by their file."""

    def __init__(self) -> None:
        self._seen = 0, 0
        self._found: dict[str, dict[str, Any]] = {}

    def namespaces(self) -> dict[str, dict[str, Any]]:
        now = len(sys.modules), len(sites.LOADED_BY_FILE)
        if self._seen != now:
            self._seen = now
            modules = sys.modules.copy().items()
            files = sites.INSTRUMENTED_FILES - sites.PACKAGES
            self._found = {
                name: vars(module) for name, module in modules if file_of(module) in files and name != "__mp_main__"
            }
            by_file = [module for module in sites.LOADED_BY_FILE if sys.modules.get(module.__name__) is not module]
            self._found.update({f"{m.__name__} (by file, {n})": vars(m) for n, m in enumerate(by_file, 1)})
        return self._found
