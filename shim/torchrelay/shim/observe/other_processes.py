"""Whether training takes in what processes of the script's own send: emulators of an environment, a service with a cache.

What these hold is neither seen nor moved, so a new process, with processes of its own, would go on with other numbers. Worker
processes of a `DataLoader` are followed elsewhere, and a pool's results come by a thread.

Leans on `multiprocessing.connection._ConnectionBase`: pipes, queues and managers are read by its methods that receive.
Seen on CPython 3.11.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from multiprocessing import connection
from types import FrameType
from typing import TYPE_CHECKING, Any, Protocol

from torchrelay.shim.script.guard import Guard
from torchrelay.shim.script.hidden_frames import is_ours

if TYPE_CHECKING:
    from torchrelay.shim.observe.protection_report import ProtectionReporter

_READS = ("recv", "recv_bytes", "recv_bytes_into")
_CARRIES = ("multiprocessing", "torch.multiprocessing", "queue", "concurrent.futures")
"""Modules between who asks and the pipe, the queue or the pool."""
_FOLLOWED = "torch.utils.data"


def asking() -> FrameType | None:
    """Return the frame that asks for a message or an item; None of a data loader's."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and (is_ours(frame) or _module(frame).startswith(_CARRIES)):
        frame = frame.f_back
    return None if frame is None or _module(frame).startswith(_FOLLOWED) else frame


def _module(frame: FrameType) -> str:
    return str(frame.f_globals.get("__name__", ""))


class Boundary(Protocol):
    @property
    def boundary(self) -> int: ...


class ReadingRank(Protocol):
    """What has to be known of a rank whose steps may read what others make."""

    @property
    def guard(self) -> Guard: ...
    @property
    def commit(self) -> Boundary | None: ...
    @property
    def reporter(self) -> ProtectionReporter: ...
    def takes_part(self) -> bool: ...
    def on_training_thread(self) -> bool: ...


class OtherProcesses:
    """Tells the report of the first message that a step reads."""

    def __init__(self, engine: ReadingRank) -> None:
        self._engine = engine

    def install(self) -> None:
        cls: Any = connection._ConnectionBase
        for name in _READS:
            setattr(cls, name, self._reading(getattr(cls, name)))

    def _reading(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def read(plain: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
            self._look()
            return plain(*args, **kwargs)

        return functools.wraps(original)(self._engine.guard.entry(original, read))

    def _look(self) -> None:
        engine = self._engine
        if engine.commit is None or not engine.takes_part() or engine.reporter.reads_from_others is not None:
            return
        frame = asking()
        if frame is not None:
            engine.reporter.others_are_read(frame, "what another process sends")
