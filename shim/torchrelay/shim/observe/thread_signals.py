"""Whether training speaks to threads of the script's own by events, conditions, semaphores and plain queues.

What such a thread has made by then is its own, and no new process has it: no rank is replaced once training has waited for one of
them, or for what it puts into a `SimpleQueue`. What training alone uses is no obstacle, and neither is what it only tells a thread.
So it is with a condition that no thread answers by, as that of a logger, or of what saves. Between a package's code and its own
threads neither is what has been asked for within the step, as file systems over a network do it.

Leans on the methods of `threading.Event`, `Condition` and `Semaphore`, and on a subclass in the place of `queue.SimpleQueue`, whose
methods nobody can exchange. Seen on CPython 3.11.
"""

from __future__ import annotations

import functools
import os
import queue
import sys
import threading
from collections import deque
from types import FrameType
from typing import Any

from torchrelay.shim.capture.values import callables
from torchrelay.shim.capture.values.by_identity import ByIdentity
from torchrelay.shim.capture.values.kinds import is_machinery
from torchrelay.shim.observe.other_threads import DrawingRank
from torchrelay.shim.script.hidden_frames import hide_all, is_ours

_TOLD = (
    (threading.Event, ("set",)),
    (threading.Condition, ("notify", "notify_all")),
    (threading.Semaphore, ("release",)),
)
_HEARD = (
    (threading.Event, ("wait", "is_set")),
    (threading.Condition, ("wait", "wait_for")),
    (threading.Semaphore, ("acquire",)),
)

_BETWEEN = frozenset({__name__, "torchrelay.shim.script.guard"})


def _caller() -> FrameType | None:
    """Return the frame that calls a method; None where that is the standard library, what only logs, or torchrelay itself."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and frame.f_globals.get("__name__") in _BETWEEN:
        frame = frame.f_back
    if frame is None or is_ours(frame):
        return None
    name = str(frame.f_globals.get("__name__", ""))
    if name == "threading" and frame.f_code.co_name == "run":  # the method is what a thread was begun for
        return frame
    root = name.partition(".")[0]
    is_others = root != "__main__" and (root in sys.stdlib_module_names or root == "torch" or is_machinery(name))
    return None if is_others else frame


class ThreadSignals:
    """Tells the report of the first time that training hears of another thread."""

    def __init__(self, engine: DrawingRank) -> None:
        self._engine = engine
        self._process = os.getpid()
        self._by_others: ByIdentity[bool] = ByIdentity()
        """What other threads than the one that trains have told by."""
        self._conditions: ByIdentity[bool] = ByIdentity()
        """Conditions that other threads have waited for."""
        self._made: ByIdentity[int] = ByIdentity()
        """What training has made since set-up, with the boundary of then."""

    def install(self) -> None:
        for cls, names in _TOLD:
            for name in names:
                self._follow(cls, name, before=self._told)
        for cls, names in _HEARD:
            self._follow(cls, "__init__", after=self._is_made)
            for name in names:
                self._follow(cls, name, before=self._waits, after=self._heard)
        self._install_queue()

    def _follow(self, cls: Any, name: str, *, before: Any = None, after: Any = None) -> None:
        original = getattr(cls, name)
        tell = self._engine.guard.tell

        @functools.wraps(original)
        def following(obj: Any, *args: Any, **kwargs: Any) -> Any:
            is_here = self._is_here()
            if is_here and before is not None:
                tell(before, obj)
            try:
                found = original(obj, *args, **kwargs)
            except BaseException as error:
                hide_all(error)
                raise
            if is_here and after is not None:
                tell(after, obj)
            return found

        setattr(cls, name, following)
        if name == "acquire":
            cls.__enter__ = following

    def _is_here(self) -> bool:
        return self._engine.tracker.live and os.getpid() == self._process

    def _is_made(self, obj: Any) -> None:
        commit = self._engine.commit
        if commit is not None and self._engine.on_training_thread():
            self._made.put(obj, commit.boundary)

    def _told(self, obj: Any) -> None:
        if not self._engine.on_training_thread():
            if _caller() is not None:
                self._by_others.put(obj, True)
                if isinstance(obj, threading.Condition):
                    self._by_others.put(_lock_of(obj), True)
        elif self._conditions.has(obj) and self._by_others.has(_lock_of(obj)):  # it may answer by that
            self._hear(obj, is_answered=True)

    def _waits(self, obj: Any) -> None:
        if (
            isinstance(obj, threading.Condition)
            and not self._engine.on_training_thread()
            and not self._conditions.has(obj)
            and _caller() is not None
        ):
            self._conditions.put(obj, True)

    def _heard(self, obj: Any) -> None:
        if self._by_others.has(obj) and self._engine.on_training_thread():
            commit = self._engine.commit
            self._hear(obj, is_answered=commit is None or self._made.get(obj) != commit.boundary)

    def _hear(self, obj: Any, *, is_answered: bool) -> None:
        """Tell of it. `is_answered`: whether it counts between a package's code and its threads, too."""
        self._tell(f"what another thread signals by an object of threading ({type(obj).__name__})", is_answered)

    def _tell(self, what: str, in_packages: bool = True) -> None:
        engine = self._engine
        if engine.commit is None or not engine.takes_part() or engine.reporter.reads_from_others is not None:
            return
        frame = _caller()
        if frame is not None and (in_packages or callables.is_users(frame.f_code.co_filename)):
            engine.reporter.others_are_read(frame, what)

    def _install_queue(self) -> None:
        signals = self
        guard = self._engine.guard

        class SimpleQueue(queue.SimpleQueue):  # type: ignore[type-arg]
            __doc__ = queue.SimpleQueue.__doc__

            def put(self, item: Any, block: bool = True, timeout: float | None = None) -> None:
                guard.tell(signals._put, self)
                super().put(item)

            def put_nowait(self, item: Any) -> None:
                self.put(item)

            def get(self, block: bool = True, timeout: float | None = None) -> Any:
                item = super().get(block, timeout)
                guard.tell(signals._got, self)
                return item

            def get_nowait(self) -> Any:
                return self.get(block=False)

        SimpleQueue.__module__ = "_queue"
        SimpleQueue.__qualname__ = "SimpleQueue"
        queue.SimpleQueue = SimpleQueue  # type: ignore[misc]

    def _put(self, into: Any) -> None:
        if not self._is_here():
            return
        if not self._engine.on_training_thread():
            self._by_others.put(into, True)
            return
        commit = self._engine.commit
        steps = into.__dict__.setdefault("_steps", deque())
        steps.append(None if commit is None else commit.boundary)

    def _got(self, taken_from: Any) -> None:
        steps = taken_from.__dict__.get("_steps")
        put_in = steps.popleft() if steps else None
        if not self._is_here() or not self._engine.on_training_thread():
            return
        commit = self._engine.commit
        if self._by_others.has(taken_from):
            self._tell("what another thread puts into a queue")
        elif commit is not None and put_in != commit.boundary:
            self._tell("what a step before has put into a SimpleQueue")


def _lock_of(condition: Any) -> Any:
    """Return the lock of a condition: those of one lock guard the same things."""
    return condition.__dict__.get("_lock", condition)
