"""What an agent does beside everything else, and does not wait for."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine
from typing import Any

log = logging.getLogger(__name__)

RESTART_S = 1.0

Work = Callable[[], Coroutine[Any, Any, None]]


class Background:
    """Holds on to tasks until they are done, which the loop itself does not."""

    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[None]] = set()

    def keep(self, work: Coroutine[Any, Any, None]) -> None:
        """Begin the work, and let it go on."""
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


async def persistently(work: Work) -> None:
    """Until `work` returns. One that raises, which is a bug, is told in the log and begun anew: training must go on."""
    while True:
        task = asyncio.ensure_future(work())
        try:
            await asyncio.wait((task,))
        finally:
            task.cancel()
        if task.cancelled() or (error := task.exception()) is None:
            return
        log.error("a part of the agent failed and starts again", exc_info=error)
        await asyncio.sleep(RESTART_S)
