"""Tell when ranks begin to train on unlike numbers of batches: `DistributedDataParallel.join()` and torch's `Join`.

A rank that has no batches left answers the collectives of the others without any step of its own. Leans on `Join.__enter__`, on
`_enable` and on `_throw_on_early_termination` (then all ranks end together). Seen on torch 2.13.0.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from torch.distributed.algorithms.join import Join


def watch(begins: Callable[[], None]) -> None:
    """Call `begins`, from now on, on each rank where other ranks may go on without those that have no batches left.

    It must not raise.
    """
    enter: Any = Join.__enter__

    @functools.wraps(enter)
    def entered(self: Any) -> Any:
        if getattr(self, "_enable", True) and not getattr(self, "_throw_on_early_termination", False):
            begins()
        return enter(self)

    Join.__enter__ = entered  # type: ignore[method-assign]  # the point
