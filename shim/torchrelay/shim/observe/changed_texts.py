"""Files that hold something else by now than when the script loaded them: no new process would run what this one runs."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping

from torchrelay.protocol.messages import Gap
from torchrelay.protocol.names import NO_JOINER
from torchrelay.shim.script import sites

ROUND_S = 15.0
"""Within this time every file has its turn. A round takes longer only where no boundary comes."""
_BEGAN_S = time.time()

_Signature = tuple[int, int, int, int]


class ChangedTexts:
    """Looks at one file after another. `texts`, `loaded_from`: as in `sites`; they grow while the script imports."""

    def __init__(
        self,
        texts: Mapping[str, int] = sites.TEXTS,
        loaded_from: Mapping[str, tuple[str, float]] = sites.LOADED_FROM,
    ) -> None:
        self._texts = texts
        self._loaded_from = loaded_from
        self._signatures: dict[str, _Signature] = {}
        self._found: dict[str, str] = {}
        self._round: list[str] = []
        self._began_s = 0.0
        self._next = 0

    @property
    def found(self) -> tuple[str, ...]:
        """The files that are not as they were, in words."""
        return tuple(f"{file}: {what}" for file, what in sorted(self._found.items()))

    def look(self, now_s: float) -> None:
        """Look at the files whose turn has come. A file that nobody has touched costs one `stat`."""
        if self._next >= len(self._round):
            self._round = list(self._texts)
            self._began_s = now_s
            self._next = 0
        due = min(int((now_s - self._began_s) / ROUND_S * len(self._round)), len(self._round))
        for file in self._round[self._next : due]:
            self._look_at(file)
        self._next = max(self._next, due)

    def gaps(self) -> list[Gap]:
        return [
            Gap("text", NO_JOINER, f"{file}: {what}, so no new process runs what this rank runs", file)
            for file, what in sorted(self._found.items())
        ]

    def _look_at(self, file: str) -> None:
        path, written_s = self._loaded_from[file]
        try:
            seen = os.stat(path)
            signature = (seen.st_ino, seen.st_size, seen.st_mtime_ns, seen.st_ctime_ns)
            if signature == self._signatures.get(file):
                return
            with open(path, "rb") as text:
                is_the_same = sites.checksum(text.read()) == self._texts[file]
        except FileNotFoundError:
            self._signatures.pop(file, None)
            if (
                written_s < _BEGAN_S
            ):  # or else set-up has written it: a new process writes it again, and compares it then
                self._found[file] = "it is not there any more"
            return
        except OSError:
            return  # it cannot be read now, which says nothing of what it holds
        self._signatures[file] = signature
        if is_the_same:
            self._found.pop(file, None)
        else:
            self._found[file] = "changed since this rank loaded it"
