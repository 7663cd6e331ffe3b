"""A sleep that can be cut short."""

from __future__ import annotations

import asyncio


class Pause:
    """A pause of one task. `asyncio.wait_for` on an event would make a new task each time, several times a second."""

    def __init__(self) -> None:
        self._over: asyncio.Future[None] | None = None

    async def sleep(self, seconds: float, least_s: float = 0.0) -> None:
        """Sleep until the time is over, or until `end` is called, but for `least_s` in any case."""
        loop = asyncio.get_running_loop()
        self._over = loop.create_future()
        timer = loop.call_later(seconds, self.end)
        try:
            if least_s > 0:
                await asyncio.sleep(least_s)
            await self._over
        finally:
            timer.cancel()
            self._over = None

    def end(self) -> None:
        """End the sleep. Do nothing if nobody sleeps."""
        if self._over is not None and not self._over.done():
            self._over.set_result(None)
