"""Figures before they are text: a metric of the table, the values of its labels, a number."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable
from dataclasses import dataclass, field

from torchrelay.protocol.metrics.metric import Metric, MetricType


class Histogram:
    """Counts observations by the buckets of a metric; `counts` has one more, for all above."""

    def __init__(self, bounds: tuple[float, ...]) -> None:
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.total = 0.0

    def observe(self, value: float) -> None:
        self.counts[bisect_left(self.bounds, value)] += 1
        self.total += value


@dataclass(frozen=True)
class Sample:
    """One value. `labels`: in the order of the metric's. Raises ValueError for labels that the table does not know."""

    metric: Metric
    labels: tuple[str, ...]
    value: float | Histogram = field(compare=True)

    def __post_init__(self) -> None:
        metric = self.metric
        if len(self.labels) != len(metric.labels):
            raise ValueError(f"{metric.name} has the labels {metric.label_names}, not the values {self.labels}")
        for label, value in zip(metric.labels, self.labels):
            if label.values and value not in label.values:
                raise ValueError(f"{metric.name}: {label.name} cannot be {value!r}; known are {label.values}")
        if isinstance(self.value, Histogram) is not (metric.type is MetricType.HISTOGRAM):
            raise ValueError(f"{metric.name} is a {metric.type.value}: {self.value!r} is none")


def by_metric(samples: Iterable[Sample]) -> dict[Metric, list[Sample]]:
    """Group samples by metric: the text format wants the samples of one metric together."""
    found: dict[Metric, list[Sample]] = {}
    for sample in samples:
        found.setdefault(sample.metric, []).append(sample)
    return found
