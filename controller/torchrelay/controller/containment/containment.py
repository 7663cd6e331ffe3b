"""Keeps to one job what is done for it: its faults, and what it takes of the processor."""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from torchrelay.controller.containment.time_share import TimeShare, rest_s

MOST_SHORT_S = 1e-3
"""The most that something short counts for: the rest passed in waiting for a processor."""


@dataclass
class CountedCost:
    """The cost of one thing that was done for the job. `most_s`: the most that it counts for in the job's share.

    `took_s`: what it took, once it is done; of something short with the time that passed in waiting for a processor.
    """

    most_s: float
    took_s: float = 0.0

    @property
    def was_short(self) -> bool:
        """Return whether the next one of its kind may be taken for short. If it is not, it is measured the time after."""
        return self.took_s <= MOST_SHORT_S


class Containment:
    """Contains one job. `failed(error)` is told what was raised, which is a bug; without it the error goes on to the caller.

    `share`: the job's share of the processor, where other jobs have theirs.
    """

    def __init__(self, failed: Callable[[Exception], None] | None, share: TimeShare | None) -> None:
        self._failed = failed
        self._share = share
        self.spent_s = 0.0
        """Processor time since the job was last asked to leave the processor to others."""

    @contextlib.contextmanager
    def contained(self, is_short: bool = False) -> Iterator[CountedCost]:
        """Hold an error that is raised inside: only `failed` is told of it.

        `is_short`: thousands come in a second, and to ask the kernel for this thread's time costs more than some of them.
        """
        clock = time.perf_counter if is_short else time.thread_time
        cost = CountedCost(MOST_SHORT_S if is_short else math.inf)
        began_s = clock()
        try:
            yield cost
        except Exception as e:  # whatever it is, the next job must not notice
            if self._failed is None:
                raise
            self._failed(e)
        finally:
            cost.took_s = clock() - began_s
            self.spent_s += min(cost.took_s, cost.most_s)

    def owed_s(self, late_s: float = 0.0) -> float:
        """Return how long this job has to leave the processor to others.

        `late_s`: by how much it was called later than it wanted.
        """
        spent_s = self.spent_s
        self.spent_s = 0.0
        if self._share is None:
            return 0.0
        return max(self._share.spend(spent_s, time.monotonic()), rest_s(late_s))
