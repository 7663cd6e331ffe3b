"""Whether steps change a store in a way that a step which is done again does twice: counters, queues, what is appended.

A value that is set is set again to the same, and is no obstacle. What torch asks of stores is not meant.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from types import FrameType
from typing import Any

import torch.distributed as dist

from torchrelay.shim.observe.other_processes import ReadingRank
from torchrelay.shim.script.guard import Guard
from torchrelay.shim.set_up.stores import by_script

_CHANGES = ("add", "append", "compare_set", "delete_key", "queue_pop", "queue_push")
_WRAPPERS = (__name__, Guard.__module__)


class ChangedStores:
    """Tells the report of the first such change."""

    def __init__(self, engine: ReadingRank) -> None:
        self._engine = engine
        self._looks = False

    def training_begins(self) -> None:
        """Look from now on: set-up's questions to stores are recorded, and given again."""
        if self._looks:
            return
        self._looks = True
        for name in _CHANGES:
            if name in vars(dist.Store):
                setattr(dist.Store, name, self._changing(name, getattr(dist.Store, name)))

    def _changing(self, name: str, original: Callable[..., Any]) -> Callable[..., Any]:
        def change(plain: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
            self._look(name)
            return plain(*args, **kwargs)

        return functools.wraps(original)(self._engine.guard.entry(original, change))

    def _look(self, name: str) -> None:
        engine = self._engine
        if engine.commit is None or not engine.takes_part() or engine.reporter.store_changed is not None:
            return
        frame: FrameType | None = sys._getframe(1)
        while frame is not None and frame.f_globals.get("__name__") in _WRAPPERS:
            frame = frame.f_back
        if frame is not None and by_script(frame) is not None:  # it is not torch that asks, nor torchrelay
            engine.reporter.store_is_changed(frame, name)
