"""A health policy that is changed while the job runs counts from then on; one that cannot be used is told, and the old one kept.

Changes come by inotify through watchdog, of the file's folder: a mounted ConfigMap is exchanged by links beside it.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from pathlib import Path

from watchdog.events import FileSystemEvent, FileSystemEventHandler
from watchdog.observers import Observer

from torchrelay.protocol.errors import UserError
from torchrelay.protocol.health.policy import HealthPolicy
from torchrelay.protocol.health.policy_file import read_policy

_NO_CHANGE = ("opened", "closed_no_write")


class PolicyWatch:
    """As a context manager, in a running loop. `take(policy)` and `log(level, text)` are called in it."""

    def __init__(
        self, path: Path, observe: bool, take: Callable[[HealthPolicy], None], log: Callable[[str, str], None]
    ) -> None:
        self._path = path
        self._observe = observe
        self._take = take
        self._log = log
        self._seen = self._mark()
        self._observer = Observer()

    def __enter__(self) -> PolicyWatch:
        handler = _Handler(asyncio.get_running_loop(), self._look)
        try:
            self._observer.schedule(handler, str(self._path.parent))
            self._observer.start()
        except OSError as e:
            self._log("warning", f"changes of {self._path} will not be noticed: {e.strerror}")
        return self

    def __exit__(self, *_: object) -> None:
        if self._observer.is_alive():
            self._observer.stop()
            self._observer.join()

    def _mark(self) -> tuple[int, ...]:
        """Another one for another content."""
        try:
            s = os.stat(self._path)
        except OSError:
            return ()
        return s.st_dev, s.st_ino, s.st_size, s.st_mtime_ns

    def _look(self) -> None:
        mark = self._mark()
        if not mark or mark == self._seen:
            return  # a moment between the old file and the new one, or a neighbour
        self._seen = mark
        try:
            policy = read_policy(str(self._path), self._observe)
        except UserError as e:
            self._log("warning", f"the changed health policy is not used, the one before it counts on: {e}")
            return
        self._take(policy)
        self._log("info", f"the health policy {self._path} was changed: {len(policy.rules)} rows count from now on")


class _Handler(FileSystemEventHandler):
    def __init__(self, loop: asyncio.AbstractEventLoop, look: Callable[[], None]) -> None:
        self._loop = loop
        self._look = look

    def on_any_event(self, event: FileSystemEvent) -> None:
        if event.event_type not in _NO_CHANGE:
            self._loop.call_soon_threadsafe(self._look)
