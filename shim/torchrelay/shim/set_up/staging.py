"""A joiner repeats the script's set-up: what that prints and writes, the lost rank has printed and written before."""

from __future__ import annotations

from collections.abc import Callable
from typing import IO, Any

import torch

from torchrelay.shim.set_up.held_output import HeldOutput
from torchrelay.shim.set_up.recording import SetUp
from torchrelay.shim.set_up.scratch_files import JoinerFiles


class Staging:
    """Between `begin` and `release` the script's output and files go aside, and it sees the world as the lost rank did."""

    def __init__(self, set_up: SetUp | None = None, *, leaves_no_trace: bool = False) -> None:
        """`leaves_no_trace`: files that do not exist go aside, too; nothing of it is ever released."""
        self._set_up = set_up
        seen = set_up.seen if set_up is not None else None
        self._output = HeldOutput()
        self._files = JoinerFiles(seen=seen, new_ones_too=leaves_no_trace)
        self._holding = False
        self.before_release: Callable[[], None] = lambda: None
        self.on_release: Callable[[], None] = lambda: None
        if set_up is not None:
            set_up.on_end = self._files.forget

    def begin(self) -> None:
        self._holding = True
        self._output.start()
        self._files.start()
        self._files.torch_imported(torch)

    def open(self, file: str, mode: str, *args: Any) -> IO[Any]:
        """Open a file as the script would."""
        return self._files.open(file, mode, *args)

    def is_aside(self, file: Any) -> bool:
        """Whether `open` opens a scratch copy in the place of `file`."""
        return self._files.is_aside(file)

    def release(self) -> None:
        """From here on the process speaks for its rank."""
        if self._holding:
            self._holding = False
            self.before_release()
            if self._set_up is not None:
                self._set_up.end()
            self._files.release()
            self._output.stop()
            self._output.close()
            self.on_release()

    def show(self) -> None:
        """Something went wrong on the way in: what the script had printed may tell why."""
        if self._holding:
            self._holding = False
            self._output.stop()
            self._output.show()
            self._output.close()
