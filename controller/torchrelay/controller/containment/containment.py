"""What is done for one job stays with it: its faults, and what it takes of the processor."""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from torchrelay.controller.containment.time_share import TimeShare, rest_s

MOST_SHORT_S = 1e-3
"""Something short counts as this at most: the rest passed in waiting for a processor."""


@dataclass
class CountedCost:
    """Of one thing that was done for the job: what it counts as at most in the job's share."""

    most_s: float


class Containment:
    """`failed(error)` is told what was raised, which is a bug; without it that goes on to the caller. `share`: of the processor,
    where other jobs have theirs."""

    def __init__(self, failed: Callable[[Exception], None] | None, share: TimeShare | None) -> None:
        self._failed, self._share = failed, share
        self.spent_s = 0.0
        """Since the job was last asked to leave the processor to others."""

    @contextlib.contextmanager
    def contained(self, is_short: bool = False) -> Iterator[CountedCost]:
        """What goes wrong inside is told to whoever looks after this job, and to nobody else.

        `is_short`: thousands come in a second, and to ask the kernel for this thread's time costs more than some of them.
        """
        clock = time.perf_counter if is_short else time.thread_time
        cost, began_s = CountedCost(MOST_SHORT_S if is_short else math.inf), clock()
        try:
            yield cost
        except Exception as e:  # whatever it is, the next job must not notice
            if self._failed is None:
                raise
            self._failed(e)
        finally:
            self.spent_s += min(clock() - began_s, cost.most_s)

    def owed_s(self, late_s: float = 0.0) -> float:
        """How long this job has to leave the processor to others. `late_s`: by how much it was called later than it wanted."""
        spent_s, self.spent_s = self.spent_s, 0.0
        if self._share is None:
            return 0.0
        return max(self._share.spend(spent_s, time.monotonic()), rest_s(late_s))
