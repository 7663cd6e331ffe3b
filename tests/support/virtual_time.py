"""An event loop whose clock jumps over every wait: minutes pass in no time, always in the same order."""

from __future__ import annotations

import asyncio
import selectors
from collections.abc import Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


class _Skipping(selectors.DefaultSelector):
    """Nobody outside is waited for: what the loop would wait for is a timer."""

    def __init__(self) -> None:
        super().__init__()
        self.skipped_s = 0.0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        found = super().select(0)
        if not found:
            assert timeout is not None, "the loop waits for something that cannot come"
            self.skipped_s += max(0.0, timeout)
        return found


class _Loop(asyncio.SelectorEventLoop):
    def __init__(self, selector: _Skipping) -> None:
        self._skipping = selector
        super().__init__(selector)

    def time(self) -> float:
        return self._skipping.skipped_s


def run_in_virtual_time(work: Coroutine[Any, Any, T]) -> T:
    loop = _Loop(_Skipping())
    try:
        return loop.run_until_complete(work)
    finally:
        for task in asyncio.all_tasks(loop):
            task.cancel()
        loop.run_until_complete(loop.shutdown_asyncgens())
        loop.close()
