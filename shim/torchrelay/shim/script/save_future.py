"""What `async_save` gives to the script, as long as a migration can come between the save and who waits for it."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, NamedTuple


class SaveId(NamedTuple):
    """The number-th save of this run in a process group, by its name; the same on all of its ranks."""

    group: str
    number: int


Wait = Callable[["SaveFuture", "float | None"], None]


class SaveFuture(Future[Any]):
    """The future of a save. `wait(future, timeout_s)` is called before any thread is made to wait for the result."""

    def __init__(self, save_id: SaveId, wait: Wait) -> None:
        super().__init__()
        self.save_id = save_id
        self._wait = wait

    @classmethod
    def around(cls, future: Future[Any], save_id: SaveId, wait: Wait) -> SaveFuture:
        """Return the same object as a SaveFuture: other threads hold it already, and complete it."""
        future.__class__ = cls
        assert isinstance(future, cls)
        future.save_id = save_id
        future._wait = wait
        return future

    def result(self, timeout: float | None = None) -> Any:
        self._wait(self, timeout)
        return super().result(timeout)

    def exception(self, timeout: float | None = None) -> BaseException | None:
        self._wait(self, timeout)
        return super().exception(timeout)
