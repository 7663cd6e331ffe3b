"""Whether training takes in what threads of the script's own put into a queue: batches that are fetched ahead, an environment.

Such a thread is ahead of training by as much as it likes, and a new process, with threads of its own, would go on with other
numbers. A queue that the training thread alone uses is no obstacle, and neither is that of a `DataLoader`, which is followed
elsewhere.

Leans on `queue.Queue.get` and `put`, which its subclasses have from it. Seen on CPython 3.11.
"""

from __future__ import annotations

import functools
import queue
from typing import Any

from torchrelay.shim.capture.values.by_identity import ByIdentity
from torchrelay.shim.observe.other_processes import ReadingRank, asking


class OtherThreads:
    """Tells the report of the first item that a step takes out of a queue that another thread has filled."""

    def __init__(self, engine: ReadingRank) -> None:
        self._engine = engine
        self._filled: ByIdentity[None] = ByIdentity()
        """Queues that others than the training thread have put something into."""

    def install(self) -> None:
        cls: Any = queue.Queue
        guard = self._engine.guard
        get = cls.get
        put = cls.put

        def taking(plain: Any, self: Any, *args: Any, **kwargs: Any) -> Any:
            threads._look(self)
            return plain(self, *args, **kwargs)

        def putting(plain: Any, self: Any, *args: Any, **kwargs: Any) -> Any:
            if not threads._engine.on_training_thread():
                threads._filled.put(self, None)
            return plain(self, *args, **kwargs)

        threads = self
        cls.get = functools.wraps(get)(guard.entry(get, taking))
        cls.put = functools.wraps(put)(guard.entry(put, putting))

    def _look(self, taken_from: Any) -> None:
        engine = self._engine
        if engine.commit is None or not engine.takes_part() or engine.reporter.reads_from_others is not None:
            return
        if not self._filled.has(taken_from):
            return
        frame = asking()
        if frame is not None:
            engine.reporter.others_are_read(frame, "what another thread puts into a queue")
