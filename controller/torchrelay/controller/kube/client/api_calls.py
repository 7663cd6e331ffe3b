"""How many requests went to the Kubernetes API, how they ended, how long they took."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator
from itertools import product

from torchrelay.protocol.metrics import table as t
from torchrelay.protocol.metrics.samples import Histogram, Sample

WATCH = "watch"
VERBS = (*t.READS, *t.WRITES)


class ApiCalls:
    """`began` and `over` bracket each request."""

    def __init__(self) -> None:
        self._counts: Counter[tuple[str, str]] = Counter()
        self._times = {verb: Histogram(t.API_TIME.buckets) for verb in VERBS if verb != WATCH}

    def over(self, verb: str, outcome: str, began_s: float) -> None:
        """`began_s`: of the monotonic clock."""
        self._counts[verb, outcome] += 1
        if verb != WATCH:
            self._times[verb].observe(time.monotonic() - began_s)

    def samples(self) -> Iterator[Sample]:
        """Zeros, too."""
        for verb, outcome in product(VERBS, t.API_OUTCOMES):
            yield Sample(t.API_CALLS, (verb, outcome), self._counts[verb, outcome])
        for verb, times in self._times.items():
            yield Sample(t.API_TIME, (verb,), times)
