"""What rewritten loops call before there is anything to protect: nothing happens, at the least cost, until torch is there.

The loops' real other half needs torch, which a script may never import.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torchrelay.shim.instrument.loop_tracker import LoopTracker


class Standby:
    def __init__(self) -> None:
        self._tracker: LoopTracker | None = None

    def tracker(self) -> LoopTracker:
        """Return the real tracker. From the first call on it tracks loops."""
        if self._tracker is None:
            from torchrelay.shim.instrument.loop_tracker import LoopTracker

            self._tracker = tracker = LoopTracker()
            self.enter = tracker.enter  # type: ignore[method-assign]  # no cost of passing calls on
            self.loop = tracker.loop  # type: ignore[method-assign]  # the same
            self.tick = tracker.tick  # type: ignore[method-assign]  # the same
            self.again = tracker.again  # type: ignore[method-assign]  # the same
            self.rewound = tracker.rewound  # type: ignore[method-assign]  # the same
            self.next = tracker.next  # type: ignore[method-assign]  # the same
        return self._tracker

    def stop(self) -> None:
        if self._tracker is not None:
            self._tracker.live = False
            self._tracker.stack.clear()

    def enter(self, site: str) -> int:
        return 0

    def loop(self, site: str, token: int, iterable: Iterable[Any]) -> Iterable[Any]:
        return iterable

    def tick(self, site: str) -> None:
        pass

    def again(self, site: str) -> bool:
        return False

    def rewound(self, site: str) -> bool:
        return False

    def next(self, iterator: Any, *default: Any) -> Any:
        return next(iterator, *default)

    def generator(self, function: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(function)
        def made(*args: Any, **kwargs: Any) -> Any:
            if self._tracker is None or not self._tracker.live:
                return function(*args, **kwargs)
            from torchrelay.shim.instrument import titan

            return titan.batches(function, *args, **kwargs)

        return made
