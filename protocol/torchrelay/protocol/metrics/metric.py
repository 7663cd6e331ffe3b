"""What is said of a metric."""

from __future__ import annotations

import enum
from dataclasses import dataclass, field


class MetricType(str, enum.Enum):
    """The type of a metric, with Prometheus' names."""

    GAUGE = "gauge"
    COUNTER = "counter"
    HISTOGRAM = "histogram"


class MetricsOf(str, enum.Enum):
    """Who serves a metric."""

    CONTROLLER = "controller"
    AGENT = "agent"
    BOTH = "both"


@dataclass(frozen=True)
class MetricLabel:
    """A label of metrics. `values`: all that it can have; empty: `bound` says how many there can be."""

    name: str
    meaning: str
    values: tuple[str, ...] = ()
    bound: str = ""


@dataclass(frozen=True)
class Metric:
    """One metric. `unit`: seconds, bytes, ratio, or what is counted. `buckets`: upper bounds of a histogram, in the unit."""

    name: str
    type: MetricType
    unit: str
    part: MetricsOf
    help: str
    labels: tuple[MetricLabel, ...] = ()
    buckets: tuple[float, ...] = field(default=(), repr=False)

    @property
    def label_names(self) -> tuple[str, ...]:
        return tuple(label.name for label in self.labels)
