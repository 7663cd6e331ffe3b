"""Writes the tables of docs/metrics.md from the metrics' table; `--check` only says whether they are up to date."""

from __future__ import annotations

import sys

from generated_part import GeneratedPart

from torchrelay.protocol.metrics.metric import Metric, MetricLabel, MetricsOf
from torchrelay.protocol.metrics.table import COSTS, METRICS, RANK_PROTECTION, SPARE_STATES, USES

HEADINGS = {
    MetricsOf.CONTROLLER: "## Of the controller",
    MetricsOf.AGENT: "## Of an agent",
    MetricsOf.BOTH: "## Of controller and agents",
}


WORDS = {
    "use": USES,
    "state of a spare": SPARE_STATES,
    "protection": RANK_PROTECTION,
    "part": COSTS,
}


def row(metric: Metric) -> str:
    labels = ", ".join(f"`{name}`" for name in metric.label_names) or "none"
    return f"| `{metric.name}` | {metric.type.value} | {metric.unit} | {labels} | {metric.help} |"


def labels_of(metrics: list[Metric]) -> list[MetricLabel]:
    """Return each label once. Labels of the same name stay apart if they differ in the values that they can have."""
    return list(dict.fromkeys(label for metric in metrics for label in metric.labels))


def meaning(label: MetricLabel, metrics: list[Metric]) -> str:
    users = [m.name for m in metrics if label in m.labels]
    where = "all of a job" if len(users) > 6 else ", ".join(f"`{name}`" for name in users)
    values = (
        ", ".join(f"`{value}`" for value in label.values) if label.values else f"as many as there are {label.bound}"
    )
    return f"| `{label.name}` | {where} | {label.meaning} | {values} |"


def tables() -> str:
    lines = []
    for part, heading in HEADINGS.items():
        if not (found := [m for m in METRICS if m.part is part]):
            continue
        lines += [heading, "", "| metric | type | unit | labels | what it tells |", "|---|---|---|---|---|"]
        lines += [*map(row, found), ""]
    everything = list(METRICS)
    lines += ["## Labels", "", "| label | of | meaning | values |", "|---|---|---|---|"]
    lines += [*(meaning(label, everything) for label in labels_of(everything)), ""]
    lines += ["| value of | value | means |", "|---|---|---|"]
    for label, words in WORDS.items():
        lines += [f"| {label} | `{value}` | {word} |" for value, word in words.items()]
    return "\n".join([*lines, ""])


PART = GeneratedPart("docs/metrics.md", "metrics", "generate_metrics_page.py", tables)


if __name__ == "__main__":
    sys.exit(PART.main(__doc__))
