"""A sleep that can be cut short."""

from __future__ import annotations

import asyncio


class Pause:
    """For one task. `asyncio.wait_for` on an event would make a task of its own each time, several times a second."""

    def __init__(self) -> None:
        self._over: asyncio.Future[None] | None = None

    async def sleep(self, seconds: float) -> None:
        """Returns when the time is over, or as soon as `end` is called."""
        loop = asyncio.get_running_loop()
        self._over = loop.create_future()
        timer = loop.call_later(seconds, self.end)
        try:
            await self._over
        finally:
            timer.cancel()
            self._over = None

    def end(self) -> None:
        """Does nothing while nobody sleeps."""
        if self._over is not None and not self._over.done():
            self._over.set_result(None)
