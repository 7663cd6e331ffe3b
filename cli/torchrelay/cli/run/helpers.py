"""What helps while a job runs: if one of these fails, so does the command."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any


class Helpers:
    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[None]] = set()
        self._failure: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def begin(self, work: Coroutine[Any, Any, None]) -> None:
        """Start work that goes on until the job is over."""
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._done)

    async def until(self, ended: asyncio.Future[Any]) -> None:
        """Wait for `ended`. Raises what a helper raises meanwhile, or has raised."""
        await asyncio.wait((ended, self._failure), return_when=asyncio.FIRST_COMPLETED)
        if self._failure.done():
            self._failure.result()

    def end(self) -> None:
        """Cancel all helpers: the job is over."""
        for task in self._tasks:
            task.cancel()

    def _done(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None and not self._failure.done():
            self._failure.set_exception(error)
