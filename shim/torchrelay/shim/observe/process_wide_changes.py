"""Whether training has registered or removed what holds for the whole process, and whether a mode of the script's own holds."""

from __future__ import annotations

from torchrelay.protocol.messages import Gap
from torchrelay.protocol.names import BARS
from torchrelay.shim.adapters import process_wide
from torchrelay.shim.capture.state.process_wide import HeldByProcess, Place
from torchrelay.shim.capture.values import callables


class ProcessWideChanges:
    def __init__(self, holds: HeldByProcess) -> None:
        self._holds = holds
        self._first: frozenset[Place] | None = None
        """What the process held at the first look, as its set-up had left it."""

    def gaps(self) -> list[Gap]:
        now = frozenset(self._holds.now())
        if self._first is None:
            self._first = now
        found = [
            Gap("hook", BARS, f"{name}: training has registered or removed what holds for all: no rank can be replaced")
            for name in sorted({holder for holder, _ in now ^ self._first})
        ]
        for mode in process_wide.modes():
            if callables.is_users_class(type(mode)):
                text = (
                    f"the mode {type(mode).__qualname__} sees calls that are not the script's: no rank can be replaced"
                )
                found.append(Gap("mode", BARS, text))
        return found
