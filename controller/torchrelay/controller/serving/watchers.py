"""Who listens to a job's events: each hears those that were told before, and then every one."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator

from torchrelay.controller.serving.event_log import PROGRESS, EventLog
from torchrelay.protocol.messages import JobEvent

_LAST = "job_finished"


class _Watcher:
    """One stream of events; None in the queue is its end."""

    def __init__(self, without_progress: bool) -> None:
        self.queue: asyncio.Queue[JobEvent | None] = asyncio.Queue()
        self._without_progress = without_progress

    def tell(self, event: JobEvent, progress: JobEvent | None) -> None:
        """`progress`: the newest."""
        if self._without_progress:
            if event.name == PROGRESS:
                return
            if event.name == _LAST and progress is not None:
                self.queue.put_nowait(progress)
        self.queue.put_nowait(event)


class Watchers:
    def __init__(self) -> None:
        self.told = EventLog()
        self._watchers: set[_Watcher] = set()
        self._is_over = False

    @property
    def is_any_there(self) -> bool:
        return bool(self._watchers)

    def tell(self, event: JobEvent) -> None:
        """To all that listen, now and later."""
        self.told.add(event)
        for watcher in self._watchers:
            watcher.tell(event, self.told.progress)

    def end(self) -> None:
        """Nothing more is told."""
        self._is_over = True
        for watcher in self._watchers:
            watcher.queue.put_nowait(None)

    async def events(self, without_progress: bool, until_now: bool) -> AsyncGenerator[JobEvent, None]:
        """All events, to the last one. `until_now`: those that were told so far."""
        watcher = _Watcher(without_progress)
        for event in self.told:
            watcher.queue.put_nowait(event)
        if self._is_over or until_now:
            watcher.queue.put_nowait(None)
        self._watchers.add(watcher)
        try:
            while (event_or_end := await watcher.queue.get()) is not None:
                yield event_or_end
        finally:
            self._watchers.discard(watcher)
