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
    """Namespaces of the script's own modules; looked up again only when modules were imported."""

    def __init__(self) -> None:
        self._seen = 0
        self._found: dict[str, dict[str, Any]] = {}

    def namespaces(self) -> dict[str, dict[str, Any]]:
        if self._seen != len(sys.modules):
            self._seen = len(sys.modules)
            modules = sys.modules.copy().items()
            files = sites.INSTRUMENTED_FILES - sites.PACKAGES
            self._found = {
                name: vars(module) for name, module in modules if file_of(module) in files and name != "__mp_main__"
            }
        return self._found
