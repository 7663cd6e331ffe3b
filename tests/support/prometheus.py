"""Prometheus' own programs, and what the metrics' table says of a query."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest
import yaml

from torchrelay.protocol.metrics.metric import Metric, MetricType
from torchrelay.protocol.metrics.table import METRICS

RULES = Path(__file__).parents[2] / "deploy" / "chart" / "files" / "rules.yaml"
ALERTS = [rule["alert"] for group in yaml.safe_load(RULES.read_text())["groups"] for rule in group["rules"]]


def series(metric: Metric) -> tuple[str, ...]:
    """The names of it that a query can use."""
    if metric.type is MetricType.HISTOGRAM:
        return tuple(f"{metric.name}_{part}" for part in ("bucket", "sum", "count"))
    return (metric.name,)


SERIES: dict[str, Metric] = {name: metric for metric in METRICS for name in series(metric)}
OF_PROMETHEUS = {"instance", "le", "job"}
"""Labels that Prometheus adds, or a histogram has."""
MATCHER = re.compile(r'(\w+)\s*(=~|!=|!~|=)\s*"([^"]*)"')


def program(name: str) -> str:
    """Its path; the test is skipped where it is not installed."""
    found = shutil.which(name)
    if found is None:
        pytest.skip(
            f"{name} is not installed: `make prometheus` installs it as root, `apt-get install prometheus` does, too"
        )
    return found


def problems(query: str) -> list[str]:
    """What in a query the table does not know: metrics, labels, and values that a label cannot have."""
    found: list[str] = []
    used: set[str] = set()
    for match in re.finditer(r"\b(torchrelay_\w+)(\{[^}]*\})?", query):
        name, matchers = match[1], match[2] or ""
        if (metric := SERIES.get(name)) is None:
            found.append(f"there is no metric {name}")
            continue
        used.update(metric.label_names)
        for label, operator, value in MATCHER.findall(matchers):
            found += _matcher(metric, label, operator, value)
    for _, labels in re.findall(r"\b(by|on|without|ignoring)\s*\(([^)]*)\)", query):
        for label in filter(None, re.split(r"[,\s]+", labels)):
            if label not in used | OF_PROMETHEUS:
                found.append(f"no metric of the query has the label {label}")
    return found


def _matcher(metric: Metric, label: str, operator: str, value: str) -> list[str]:
    known = {each.name: each for each in metric.labels}
    if label not in known:
        return [f"{metric.name} has no label {label}"]
    values = known[label].values
    if not values or "$" in value:
        return []
    wanted = value.split("|") if "~" in operator else [value]
    return [f"{metric.name}: {label} is never {each}" for each in wanted if each not in values]


def promtool(*words: str, given: str = "") -> str:
    done = subprocess.run([program("promtool"), *words], input=given, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr
