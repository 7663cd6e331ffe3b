"""Files that tell of a job's health: checkpoints on disk, which a fallback needs (how old, and are they whole?), and dumps of
PyTorch's flight recorder.

Changes come by inotify through watchdog, whose threads hand them to the agent's loop.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

from watchdog.events import FileClosedEvent, FileMovedEvent, FileSystemEvent, FileSystemEventHandler
from watchdog.observers import Observer

from torchrelay.agent.health.job_files.checkpoints import what_is_broken
from torchrelay.agent.health.job_files.flight_recorder import Dumps
from torchrelay.agent.health.probes.differ import Differ
from torchrelay.protocol.health import kinds as k
from torchrelay.protocol.messages import HealthSignal

log = logging.getLogger(__name__)

AGE_EVERY_S = 600.0
"""How often the age of the newest checkpoint is told, while there is one."""
SHOWN = 3
SETTLED_S = 30.0
"""After so long without a write a checkpoint is taken for finished, and looked at."""


class Files:
    """`folders`: those of checkpoints and dumps; without any, nothing is started."""

    def __init__(self, folders: Sequence[str], tell: Callable[[HealthSignal], None]) -> None:
        self._folders = folders
        self._tell = tell
        self._observer = Observer() if folders else None
        self._dumps = Dumps()
        self._newest_s: dict[str, float] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._settling: dict[str, asyncio.TimerHandle] = {}
        self._looking: set[asyncio.Task[None]] = set()
        self._differ = Differ()

    def start(self) -> None:
        if self._observer is None:
            return
        loop = asyncio.get_running_loop()
        for folder in self._folders:
            try:
                self._observer.schedule(_Handler(partial(self._from_thread, loop, folder)), folder, recursive=True)
                files = (p for p in Path(folder).rglob("*") if p.is_file())
                self._newest_s[folder] = max((p.stat().st_mtime for p in files), default=0.0)
                if self._newest_s[folder]:
                    self._settle(folder)
            except OSError as e:
                self._tell(HealthSignal(k.SOURCE_DEAD, folder, detail=f"{folder} cannot be watched: {e.strerror}"))
        self._observer.start()
        self._age()

    def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        for timer in self._settling.values():
            timer.cancel()
        for task in self._looking:
            task.cancel()
        if self._observer is not None and self._observer.is_alive():
            self._observer.stop()
            self._observer.join()

    def _from_thread(self, loop: asyncio.AbstractEventLoop, folder: str, path: str) -> None:
        loop.call_soon_threadsafe(self._written, folder, path)

    def _written(self, folder: str, path: str) -> None:
        culprit = self._dumps.take(Path(path))
        if culprit is not None:
            self._tell(HealthSignal(k.FLIGHT_RECORDER, folder, code=culprit.rank, detail=culprit.reason))
        self._newest_s[folder] = time.time()
        self._settle(folder)

    def _settle(self, folder: str) -> None:
        if (before := self._settling.get(folder)) is not None:
            before.cancel()
        self._settling[folder] = asyncio.get_running_loop().call_later(SETTLED_S, self._look, folder)

    def _look(self, folder: str) -> None:
        task = asyncio.ensure_future(self._is_whole(folder))
        self._looking.add(task)
        task.add_done_callback(self._looking.discard)

    async def _is_whole(self, folder: str) -> None:
        """In a thread: a file system may take its time."""
        try:
            broken = await asyncio.to_thread(what_is_broken, Path(folder))
        except OSError as e:
            log.debug("%s cannot be looked at: %s", folder, e)
            return
        detail = "; ".join(broken[:SHOWN]) + (f"; and {len(broken) - SHOWN} more" if len(broken) > SHOWN else "")
        for signal in self._differ.update(folder, {k.CHECKPOINT_BROKEN: float(len(broken))}, detail):
            self._tell(signal)

    def _age(self) -> None:
        for folder, newest_s in self._newest_s.items():
            if newest_s:
                self._tell(HealthSignal(k.CHECKPOINT_AGE, folder, value=max(time.time() - newest_s, 0.0)))
        self._timer = asyncio.get_running_loop().call_later(AGE_EVERY_S, self._age)


class _Handler(FileSystemEventHandler):
    def __init__(self, written: Callable[[str], None]) -> None:
        self._written = written

    def on_closed(self, event: FileSystemEvent) -> None:
        if isinstance(event, FileClosedEvent):
            self._written(str(event.src_path))

    def on_moved(self, event: FileSystemEvent) -> None:
        if isinstance(event, FileMovedEvent):
            self._written(str(event.dest_path))
