"""Prometheus' conventions for names, and that all that is made from the table is up to date."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
import yaml
from support.prometheus import SERIES, problems, series
from support.repository_script import script

from torchrelay.protocol.metrics.metric import Metric, MetricType
from torchrelay.protocol.metrics.table import METRICS, PREFIX

ROOT = Path(__file__).parents[4]
RULES = yaml.safe_load((ROOT / "deploy" / "chart" / "files" / "rules.yaml").read_text())
DASHBOARD = json.loads((ROOT / "deploy" / "chart" / "files" / "dashboard.json").read_text())
IDS = [metric.name for metric in METRICS]
RULE_QUERIES = {rule["alert"]: rule["expr"] for group in RULES["groups"] for rule in group["rules"]}
PANEL_QUERIES = {
    f"{panel['title']} {target['refId']}": target["expr"]
    for panel in DASHBOARD["panels"]
    for target in panel["targets"]
}
LISTS = {v["name"]: v["definition"] for v in DASHBOARD["templating"]["list"] if v["type"] == "query"}
QUERIES = RULE_QUERIES | PANEL_QUERIES | LISTS


@pytest.mark.parametrize("metric", METRICS, ids=IDS)
def test_names_are_as_prometheus_wants_them(metric: Metric) -> None:
    assert re.fullmatch(rf"{PREFIX}[a-z][a-z0-9_]*", metric.name)
    assert (metric.type is MetricType.COUNTER) == metric.name.endswith("_total")
    for unit in ("seconds", "bytes", "ratio"):
        if metric.unit == unit:
            assert unit in metric.name.removesuffix("_total").split("_")[-2:], "the unit is in the name"
    assert not re.search(r"_(gauge|counter|histogram|count|sum|bucket)$", metric.name)
    assert metric.help.endswith(".")


@pytest.mark.parametrize("metric", METRICS, ids=IDS)
def test_labels_are_bounded_and_take_no_name_of_prometheus(metric: Metric) -> None:
    for label in metric.labels:
        assert bool(label.values) != bool(label.bound), f"{label.name}: its values, or what bounds them"
        assert len(set(label.values)) == len(label.values) <= 16
        assert label.name not in ("job", "instance", "le", "quantile")
    assert bool(metric.buckets) == (metric.type is MetricType.HISTOGRAM)
    assert list(metric.buckets) == sorted(metric.buckets)


def test_each_name_is_there_once() -> None:
    assert len(SERIES) == sum(len(series(metric)) for metric in METRICS)


@pytest.mark.parametrize("name", ["generate_metrics_page", "generate_dashboard"])
def test_what_is_made_from_the_table_is_up_to_date(name: str) -> None:
    module = script(name)
    if name == "generate_metrics_page":
        assert module.PART.text() == module.PART.path.read_text("utf-8")
        assert [m.name for m in METRICS if f"| `{m.name}` |" not in module.PART.text()] == []
    else:
        assert module.text() == module.FILE.read_text("utf-8")


@pytest.mark.parametrize("name", QUERIES)
def test_rules_and_panels_ask_for_what_is_there(name: str) -> None:
    assert "torchrelay_" in QUERIES[name]
    assert problems(QUERIES[name]) == []


@pytest.mark.parametrize(
    ("query", "said"),
    [
        ("torchrelay_job_step_total", "there is no metric torchrelay_job_step_total"),
        ("sum by (rank) (torchrelay_job_ranks)", "no metric of the query has the label rank"),
        ('torchrelay_job_ranks{status="lost"}', "torchrelay_job_ranks has no label status"),
        ('torchrelay_job_ranks{state=~"lost|gone"}', "torchrelay_job_ranks: state is never gone"),
        ("torchrelay_migration_downtime_seconds", "there is no metric torchrelay_migration_downtime_seconds"),
    ],
)
def test_a_query_for_what_is_not_there_is_found(query: str, said: str) -> None:
    assert problems(query) == [said]
