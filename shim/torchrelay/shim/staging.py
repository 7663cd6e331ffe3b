"""A joiner repeats the script's set-up: what that prints and writes, the lost rank has printed and written before."""

from __future__ import annotations

from pathlib import Path


class Staging:
    """Between `begin` and `release` the script's output and files go aside."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def begin(self) -> None: ...

    def release(self) -> None: ...

    def show(self) -> None: ...
