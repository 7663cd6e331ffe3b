"""Whether training takes in what threads of the script's own make: batches that are fetched ahead, an environment.

Such a thread is ahead of training by as much as it likes. What it puts into a queue that training alone takes from, and that
training tells it nothing by, can be had again: `filled_queues` says how. No rank is replaced where threads fill another queue.
A queue that the training thread alone uses is no obstacle, and neither is that of a `DataLoader`, which is followed elsewhere.
What a pool is given and has made within one step is none either, nor a task that returns None, or whose result is left, such as
one that saves.

Leans on `queue.Queue`: its `get`, `put`, `empty`, `full`, `qsize` and `task_done`, which its subclasses have from it; on
`ThreadPoolExecutor.submit` and `Future.result`, and on `multiprocessing.pool.ApplyResult` and `IMapIterator`. Seen on CPython 3.11.
"""

from __future__ import annotations

import dis
import functools
import os
import queue
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from multiprocessing import pool
from types import FrameType
from typing import Any, Protocol

from torchrelay.shim.capture.state.filled_queues import QueueUse
from torchrelay.shim.capture.values.by_identity import ByIdentity
from torchrelay.shim.data.fetching_turns import FetchingTurns
from torchrelay.shim.instrument.loop_tracker import LoopTracker
from torchrelay.shim.observe.other_processes import ReadingRank, asking
from torchrelay.shim.script.save_future import SaveFuture

_POP_TOP = dis.opmap["POP_TOP"]
_CACHE = dis.opmap.get("CACHE", -1)


def _leaves_result(frame: FrameType) -> bool:
    """Return whether the frame has no use for what its call returns: it waits for a save, which returns a file's name."""
    code = frame.f_code.co_code
    place = frame.f_lasti + 2
    while place < len(code) and code[place] == _CACHE:
        place += 2
    return place < len(code) and code[place] == _POP_TOP


class DrawingRank(ReadingRank, Protocol):
    @property
    def tracker(self) -> LoopTracker: ...
    @property
    def fetching(self) -> FetchingTurns: ...


class OtherThreads:
    """Tells the report of the first item that a step takes out of a queue that another thread has filled."""

    def __init__(self, engine: DrawingRank) -> None:
        self._engine = engine
        self._queues = engine.trees.queues
        self._process = os.getpid()
        self._asked: ByIdentity[int] = ByIdentity()
        """What pools have been asked for, with the boundary of then."""

    def install(self) -> None:
        self._install_queues()
        self._install_pools()

    def _install_queues(self) -> None:
        cls: Any = queue.Queue
        guard = self._engine.guard
        begin = cls.__init__
        get = cls.get
        put = cls.put
        threads = self

        def beginning(plain: Any, self: Any, *args: Any, **kwargs: Any) -> None:
            plain(self, *args, **kwargs)
            threads._queues.made(self, in_set_up=not threads._engine.tracker.stack)

        def taking(plain: Any, self: Any, *args: Any, **kwargs: Any) -> Any:
            waits = (args[0] if args else kwargs.get("block", True)) is not False
            return threads._take(self, functools.partial(plain, self, *args, **kwargs), waits)

        def putting(plain: Any, self: Any, *args: Any, **kwargs: Any) -> Any:
            if not threads._is_here():
                return plain(self, *args, **kwargs)
            by_training = threads._engine.on_training_thread()
            use = threads._queues.given(self, by_training=by_training)
            if by_training or not use.is_ahead:
                return plain(self, *args, **kwargs)
            turns = threads._engine.fetching
            turns.before_put(self)
            try:
                return plain(self, *args, **kwargs)
            finally:
                turns.after_put()

        def polling(plain: Any, self: Any, *args: Any, **kwargs: Any) -> Any:
            threads._note_poll(self)
            return plain(self, *args, **kwargs)

        for name in ("empty", "full", "qsize", "task_done"):
            ask = getattr(cls, name)
            setattr(cls, name, functools.wraps(ask)(guard.entry(ask, polling)))
        cls.__init__ = functools.wraps(begin)(guard.entry(begin, beginning))
        cls.get = functools.wraps(get)(guard.entry(get, taking))
        cls.put = functools.wraps(put)(guard.entry(put, putting))

    def _take(self, taken_from: Any, get: Callable[[], Any], waits: bool) -> Any:
        """Take an item, and record it for a step that is done again, if a thread fetches such items ahead.

        `waits`: whether the script waits for one.
        """
        engine = self._engine
        if not self._is_here():
            return get()
        if not engine.on_training_thread():
            self._queues.taken_elsewhere(taken_from)
            return get()
        if asking() is None:  # a data loader's own
            return get()
        use = self._queues.use(taken_from)
        use.is_taken = True
        use.is_polled = use.is_polled or not waits
        if use.is_given or use.is_shared or use.is_polled or not use.in_order:
            self._look(use)
            return get()

        def take(_: Any) -> Any:
            if not taken_from.queue:
                engine.fetching.waits_for_item()
            try:
                item = get()
            except queue.Empty:
                use.is_polled = True  # whether there is an item depends on how far the thread is
                raise
            use.put(use.place.after(item))
            engine.draws.touched.append(use.effect)
            return item

        item = engine.draws.draw(taken_from, take)
        self._look(use)
        return item

    def _install_pools(self) -> None:
        submit: Any = ThreadPoolExecutor.submit
        guard = self._engine.guard
        threads = self

        def submitting(plain: Any, *args: Any, **kwargs: Any) -> Any:
            future = plain(*args, **kwargs)
            threads._ask(future)
            return future

        def beginning(plain: Any, self: Any, *args: Any, **kwargs: Any) -> Any:
            threads._ask(self)
            return plain(self, *args, **kwargs)

        def reading(plain: Any, self: Any, *args: Any, **kwargs: Any) -> Any:
            found = plain(self, *args, **kwargs)
            threads._read(self, found)
            return found

        executor: Any = ThreadPoolExecutor
        executor.submit = functools.wraps(submit)(guard.entry(submit, submitting))
        kinds: tuple[Any, ...] = (pool.ApplyResult, pool.IMapIterator)
        for cls in kinds:
            begin = cls.__init__
            cls.__init__ = functools.wraps(begin)(guard.entry(begin, beginning))
        ways: tuple[tuple[Any, str], ...] = ((Future, "result"), (pool.ApplyResult, "get"), (pool.IMapIterator, "next"))
        for cls, name in ways:
            read = getattr(cls, name)
            setattr(cls, name, functools.wraps(read)(guard.entry(read, reading)))
        items: Any = pool.IMapIterator
        items.__next__ = items.next

    def _note_poll(self, polled: Any) -> None:
        if self._is_here() and self._engine.on_training_thread() and asking() is not None:
            self._queues.use(polled).is_polled = True

    def _is_here(self) -> bool:
        """Return whether this is the rank's process, and none that the script has forked, whose threads nobody replaces."""
        return self._engine.tracker.live and os.getpid() == self._process

    def _look(self, use: QueueUse) -> None:
        if self._may_tell() and use.is_filled and not use.is_ahead:
            self._tell("what another thread puts into a queue")

    def _ask(self, result: Any) -> None:
        """Note what the training thread asks of a pool. Torch's own saves are followed elsewhere."""
        frame = asking() if self._engine.on_training_thread() else None
        if frame is not None and not str(frame.f_globals.get("__name__", "")).startswith("torch."):
            commit = self._engine.commit
            self._asked.put(result, -1 if commit is None else commit.boundary)

    def _read(self, result: Any, found: Any) -> None:
        commit = self._engine.commit
        asked = self._asked.get(result)
        if found is None or asked is None or commit is None or isinstance(result, SaveFuture) or not self._may_tell():
            return
        frame = asking()
        if asked != commit.boundary and frame is not None and not _leaves_result(frame):
            if self._engine.draws.counted is not None:
                self._engine.trees.led.want_itself(self._engine.draws.counted)
                return
            self._tell("what a pool's thread has made in a step before")

    def _may_tell(self) -> bool:
        engine = self._engine
        return engine.commit is not None and engine.takes_part() and engine.reporter.reads_from_others is None

    def _tell(self, what: str) -> None:
        frame = asking()
        if frame is not None:
            self._engine.reporter.others_are_read(frame, what)
