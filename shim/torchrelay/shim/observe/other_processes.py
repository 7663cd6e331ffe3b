"""Whether training takes in what processes of the script's own send: emulators of an environment, a service with a cache.

What these hold is neither seen nor moved, so a new process, with processes of its own, would go on with other numbers. Where they
only send, and training takes that in by asking an iterator of set-up, a new process asks its own as often (`led_iterators`). Worker
processes of a `DataLoader` are followed elsewhere, and a pool's results come by a thread.

Leans on `multiprocessing.connection._ConnectionBase`: pipes, queues and managers are read by its methods that receive, and written
by those that send; on `multiprocessing.queues.Queue.put`, those of `JoinableQueue` that tell something, and
`multiprocessing.synchronize.Event.set`. Seen on CPython 3.11.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from multiprocessing import connection, queues, synchronize
from types import FrameType
from typing import TYPE_CHECKING, Any, Protocol

from torchrelay.shim.script.guard import Guard
from torchrelay.shim.script.hidden_frames import is_ours

if TYPE_CHECKING:
    from torchrelay.shim.capture.models.modules import ModuleTrees
    from torchrelay.shim.data.iterator_replay import IteratorReplay
    from torchrelay.shim.observe.protection_report import ProtectionReporter

_READS = ("recv", "recv_bytes", "recv_bytes_into")
_WRITES: tuple[tuple[Any, str], ...] = (
    (connection._ConnectionBase, "send"),
    (connection._ConnectionBase, "send_bytes"),
    (queues.Queue, "put"),
    (queues.JoinableQueue, "put"),
    (queues.JoinableQueue, "task_done"),
    (synchronize.Event, "set"),
)
_SENT = "what another process sends"
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
    @property
    def draws(self) -> IteratorReplay: ...
    @property
    def trees(self) -> ModuleTrees: ...
    def takes_part(self) -> bool: ...
    def on_training_thread(self) -> bool: ...


class OtherProcesses:
    """Tells the report of the first message that a step reads."""

    def __init__(self, engine: ReadingRank) -> None:
        self._engine = engine
        self._is_spoken_to = False
        """Whether a step has sent something to another process: what that sends may be the answer."""
        self._is_led = False
        """Whether something that other processes send is taken in by iterators that are led."""

    def install(self) -> None:
        cls: Any = connection._ConnectionBase
        for name in _READS:
            setattr(cls, name, self._hooked(getattr(cls, name), self._look))
        for cls, name in _WRITES:
            setattr(cls, name, self._hooked(getattr(cls, name), self._note_sending))

    def _hooked(self, original: Callable[..., Any], look: Callable[[], None]) -> Callable[..., Any]:
        def call(plain: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
            look()
            return plain(*args, **kwargs)

        return functools.wraps(original)(self._engine.guard.entry(original, call))

    def _note_sending(self) -> None:
        engine = self._engine
        if self._is_spoken_to or engine.commit is None or not engine.takes_part() or not engine.on_training_thread():
            return
        frame = asking()
        if frame is None:
            return
        self._is_spoken_to = True
        if self._is_led:
            engine.reporter.others_are_read(frame, _SENT)

    def _look(self) -> None:
        engine = self._engine
        if engine.commit is None or not engine.takes_part() or engine.reporter.reads_from_others is not None:
            return
        frame = asking()
        if frame is None:
            return
        asked = engine.draws.counted
        if asked is None or self._is_spoken_to:
            engine.reporter.others_are_read(frame, _SENT)
        else:
            self._is_led = True
            engine.trees.led.want_itself(asked)
