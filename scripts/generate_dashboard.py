"""Writes Grafana's dashboard from the metrics' table; `--check` only says whether it is up to date."""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torchrelay.protocol.metrics import table as t
from torchrelay.protocol.metrics.metric import Metric

FILE = Path(__file__).resolve().parent.parent / "deploy" / "chart" / "files" / "dashboard.json"
UID = "torchrelay"
SOURCE = {"type": "prometheus", "uid": "${datasource}"}
OF_JOBS = 'job_namespace=~"$namespace",job_name=~"$name"'
JOB = "job_namespace, job_name"
WIDTH, HEIGHT, COLUMNS = 8, 8, 24
SECONDS, RATIO, BYTES_RATE, COUNT = "s", "percentunit", "Bps", "short"


@dataclass(frozen=True)
class Panel:
    """`queries`: PromQL with its legend. `kind`: of Grafana's panels."""

    title: str
    unit: str
    queries: tuple[tuple[str, str], ...]
    kind: str = "timeseries"
    stacked: bool = False
    description: str = ""


def of_jobs(metric: Metric, more: str = "") -> str:
    """Return a query for the metric's series of the chosen jobs. `more`: further matchers."""
    return f"{metric.name}{{{OF_JOBS}{',' + more if more else ''}}}"


def largest(metric: Metric, by: str, more: str = "") -> str:
    """Return a query for the largest value of each job, so that it counts once even if several processes report it."""
    return f"max by ({by}) ({of_jobs(metric, more)})"


def quantile(q: float, metric: Metric, by: str) -> str:
    return f"histogram_quantile({q}, sum by ({by}, le) (increase({metric.name}_bucket[$__range])))"


PANELS = (
    Panel(
        "Jobs by protection",
        COUNT,
        ((f"sum by (level) ({largest(t.JOB_PROTECTION, JOB + ', level')})", "{{level}}"),),
        stacked=True,
    ),
    Panel(
        "Jobs that are not protected",
        COUNT,
        (
            (
                f"{largest(t.JOB_PROTECTION, JOB, 'level=~' + chr(34) + 'unprotected|partly' + chr(34))} == 1 "
                f"and on ({JOB}) {largest(t.JOB_PROTECTION_CAUSE, JOB + ', cause')} == 1",
                "{{job_namespace}}/{{job_name}}",
            ),
        ),
        kind="table",
        description="The event `protection` says why.",
    ),
    Panel(
        "What protection hangs on",
        COUNT,
        ((f"sum by (cause) ({largest(t.JOB_PROTECTION_CAUSE, JOB + ', cause')})", "{{cause}}"),),
        stacked=True,
    ),
    Panel(
        "Goodput",
        RATIO,
        (
            (
                f"sum by ({JOB}) (rate({of_jobs(t.JOB_TIME, 'use=' + chr(34) + t.USEFUL + chr(34))}[$__rate_interval]))",
                "{{job_namespace}}/{{job_name}}",
            ),
        ),
        description="Useful time by all time: docs/metrics.md says what counts.",
    ),
    Panel(
        "What time was used for",
        RATIO,
        ((f"sum by (use) (rate({of_jobs(t.JOB_TIME)}[$__rate_interval]))", "{{use}}"),),
        stacked=True,
    ),
    Panel(
        "Steps per second",
        COUNT,
        ((f"sum by ({JOB}) (rate({of_jobs(t.JOB_STEPS)}[$__rate_interval]))", "{{job_namespace}}/{{job_name}}"),),
    ),
    Panel("Ranks", COUNT, ((f"sum by (state) ({largest(t.JOB_RANKS, JOB + ', state')})", "{{state}}"),), stacked=True),
    Panel(
        "Ranks by protection",
        COUNT,
        ((f"sum by (protection) ({largest(t.JOB_RANK_PROTECTION, JOB + ', protection')})", "{{protection}}"),),
        stacked=True,
    ),
    Panel(
        "Spares", COUNT, ((f"sum by (state) ({largest(t.JOB_SPARES, JOB + ', state')})", "{{state}}"),), stacked=True
    ),
    Panel(
        "Migrations by cause",
        COUNT,
        (
            (
                f"sum by (kind, cause, outcome) (increase({t.MIGRATIONS.name}[$__range])) > 0",
                "{{kind}} {{cause}}: {{outcome}}",
            ),
        ),
        kind="bargauge",
    ),
    Panel(
        "Downtime of a migration, median and 95 %",
        SECONDS,
        (
            (quantile(0.5, t.MIGRATION_STOP, "kind"), "{{kind}} median"),
            (quantile(0.95, t.MIGRATION_STOP, "kind"), "{{kind}} 95 %"),
        ),
        kind="bargauge",
    ),
    Panel(
        "Downtime by phase, median",
        SECONDS,
        ((quantile(0.5, t.MIGRATION_PHASES, "phase"), "{{phase}}"),),
        kind="bargauge",
        description="`detect` is the latency of detection.",
    ),
    Panel(
        "Rate of transfers",
        BYTES_RATE,
        (
            (
                f"increase({t.TRANSFERRED.name}[$__range]) / on (instance) "
                f'sum by (instance) (increase({t.MIGRATION_PHASES.name}_sum{{phase="transfer"}}[$__range]))',
                "{{instance}}",
            ),
        ),
        kind="stat",
    ),
    Panel(
        "Steps done again",
        COUNT,
        ((f"sum by ({JOB}) (increase({of_jobs(t.JOB_STEPS_REDONE)}[$__range]))", "{{job_namespace}}/{{job_name}}"),),
        kind="bargauge",
    ),
    Panel("Cost of a step", SECONDS, ((f"max by (part) ({of_jobs(t.JOB_COST)})", "{{part}}"),)),
    Panel(
        "In quarantine",
        COUNT,
        ((f"sum by (subject) ({largest(t.JOB_QUARANTINED, JOB + ', subject')})", "{{subject}}"),),
        kind="stat",
    ),
    Panel(
        "Verdicts on health",
        COUNT,
        ((f"sum by (action, outcome) (increase({t.VERDICTS.name}[$__range])) > 0", "{{action}}: {{outcome}}"),),
        kind="bargauge",
    ),
    Panel(
        "Lag of event loops, 99 %",
        SECONDS,
        (
            (
                f"histogram_quantile(0.99, sum by (instance, le) (rate({t.LOOP_LAG.name}_bucket[$__rate_interval])))",
                "{{instance}}",
            ),
        ),
    ),
    Panel(
        "Requests to the Kubernetes API",
        "reqps",
        ((f"sum by (verb, outcome) (rate({t.API_CALLS.name}[$__rate_interval])) > 0", "{{verb}} {{outcome}}"),),
    ),
    Panel(
        "Agents away from the controller", COUNT, ((f"count({t.AGENT_CONNECTED.name} == 0)", "agents"),), kind="stat"
    ),
    Panel(
        "Certificates run out in",
        SECONDS,
        ((f"min by (certificate) ({t.CERTIFICATE_ENDS.name}) - time()", "{{certificate}}"),),
        kind="stat",
    ),
)


def panel(made: Panel, number: int) -> dict[str, Any]:
    per_row = COLUMNS // WIDTH
    at = {"h": HEIGHT, "w": WIDTH, "x": number % per_row * WIDTH, "y": number // per_row * HEIGHT}
    custom = {"stacking": {"mode": "normal"}, "fillOpacity": 20} if made.stacked else {}
    instant = made.kind != "timeseries"
    return {
        "id": number + 1,
        "type": made.kind,
        "title": made.title,
        "description": made.description,
        "datasource": SOURCE,
        "gridPos": at,
        "fieldConfig": {"defaults": {"unit": made.unit, "min": 0, "custom": custom}, "overrides": []},
        "targets": [
            {
                "refId": chr(ord("A") + place),
                "datasource": SOURCE,
                "expr": query,
                "legendFormat": legend,
                "instant": instant,
                "range": not instant,
                **({"format": "table"} if made.kind == "table" else {}),
            }
            for place, (query, legend) in enumerate(made.queries)
        ],
    }


def chosen(name: str, label: str, more: str = "") -> dict[str, Any]:
    """Return a list of the label's values to choose from."""
    query = f"label_values({t.JOB_BOUNDARY.name}{more}, {label})"
    return {
        "name": name,
        "type": "query",
        "datasource": SOURCE,
        "query": {"query": query, "refId": name},
        "definition": query,
        "includeAll": True,
        "multi": True,
        "allValue": ".*",
        "refresh": 2,
        "current": {"text": "All", "value": "$__all"},
    }


def dashboard() -> dict[str, Any]:
    return {
        "uid": UID,
        "title": "torchrelay",
        "tags": ["torchrelay"],
        "schemaVersion": 39,
        "editable": True,
        "refresh": "30s",
        "time": {"from": "now-6h", "to": "now"},
        "templating": {
            "list": [
                {"name": "datasource", "type": "datasource", "query": "prometheus"},
                chosen("namespace", "job_namespace"),
                chosen("name", "job_name", '{job_namespace=~"$namespace"}'),
            ]
        },
        "panels": [panel(made, number) for number, made in enumerate(PANELS)],
    }


def text() -> str:
    return json.dumps(dashboard(), indent=1) + "\n"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="change nothing; exit code 1 if the dashboard is stale")
    if not parser.parse_args().check:
        FILE.write_text(text(), "utf-8")
        return 0
    if not FILE.exists() or text() != FILE.read_text("utf-8"):
        print(f"{FILE} is stale; run: python scripts/generate_dashboard.py", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
