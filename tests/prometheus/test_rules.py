"""The alert rules by Prometheus' own test: at which moment each fires, and that it does not before."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml
from support.prometheus import ALERTS, RULES, promtool

JOB = 'job_namespace="team",job_name="llm"'
WARNING, CRITICAL = "warning", "critical"


@dataclass(frozen=True)
class Case:
    """`series`: what Prometheus has, each minute. `quiet`, `loud`: when the alert does not fire yet, and when it does.

    `labels`: of the alert, beside its severity.
    """

    alert: str
    series: dict[str, str]
    quiet: str
    loud: str
    severity: str
    labels: dict[str, str]


OF_JOB = {"job_namespace": "team", "job_name": "llm"}
CASES = (
    Case(
        "TorchrelayJobUnprotected",
        {f'torchrelay_job_protection_level{{{JOB},level="unprotected"}}': "0x3 1x20"},
        "8m",
        "10m",
        WARNING,
        OF_JOB,
    ),
    Case(
        "TorchrelaySparePoolEmpty",
        {
            f"torchrelay_job_spares_wanted{{{JOB}}}": "1x30",
            f'torchrelay_job_spares{{{JOB},state="ready"}}': "1x3 0x30",
        },
        "13m",
        "15m",
        WARNING,
        OF_JOB,
    ),
    Case(
        "TorchrelayMigrationFailed",
        {
            f'torchrelay_job_migrations_total{{{JOB},outcome="abandoned"}}': "0x3 1x20",
            f'torchrelay_job_migrations_total{{{JOB},outcome="committed"}}': "0x2 7x20",
        },
        "3m",
        "5m",
        CRITICAL,
        {**OF_JOB, "outcome": "abandoned"},
    ),
    Case(
        "TorchrelayPromiseBroken",
        {f"torchrelay_job_incidents_total{{{JOB}}}": "0x3 1x20"},
        "3m",
        "5m",
        CRITICAL,
        OF_JOB,
    ),
    Case(
        "TorchrelayMigrationStorm",
        {f'torchrelay_job_migrations_total{{{JOB},outcome="committed"}}': "0x5 1 2 3 4 5 6 6x20"},
        "8m",
        "30m",
        WARNING,
        OF_JOB,
    ),
    Case(
        "TorchrelayControllerStuck",
        {
            'torchrelay_event_loop_held_up_seconds{instance="c:29480"}': "0x2 5 65 125 185",
            "torchrelay_controller_leads": "1x20",
        },
        "3m",
        "5m",
        CRITICAL,
        {"instance": "c:29480"},
    ),
    Case("TorchrelayNoController", {"torchrelay_controller_leads": "1x3 0x20"}, "8m", "10m", CRITICAL, {}),
    Case(
        "TorchrelayAgentAway",
        {'torchrelay_agent_controller_away_seconds{instance="a:29481"}': "0 60 120 180 240"},
        "2m",
        "3m",
        WARNING,
        {"instance": "a:29481"},
    ),
    Case(
        "TorchrelayCertificateOld",
        {'torchrelay_certificate_not_after_timestamp_seconds{instance="a:29481",certificate="own"}': "1500x30"},
        "14m",
        "16m",
        WARNING,
        {"instance": "a:29481", "certificate": "own"},
    ),
)


def promtool_test(case: Case) -> dict[str, Any]:
    series = {"torchrelay_controller_leads": "1x60"} | case.series
    labels = {**case.labels, "severity": case.severity}
    return {
        "interval": "1m",
        "input_series": [{"series": name, "values": values} for name, values in series.items()],
        "promql_expr_test": [
            firing(case.alert, case.quiet, []),
            firing(case.alert, case.loud, [{"alertname": case.alert, "alertstate": "firing", **labels}]),
        ],
    }


def firing(alert: str, at: str, found: list[dict[str, str]]) -> dict[str, Any]:
    samples = [
        {"labels": "ALERTS" + "{" + ",".join(f'{k}="{v}"' for k, v in one.items()) + "}", "value": 1} for one in found
    ]
    return {"expr": f'ALERTS{{alertname="{alert}",alertstate="firing"}}', "eval_time": at, "exp_samples": samples}


def test_promtool_has_nothing_against_the_rules() -> None:
    assert f"SUCCESS: {len(ALERTS)} rules found" in promtool("check", "rules", "--lint=all", "--lint-fatal", str(RULES))


def test_each_alert_has_a_case() -> None:
    assert [case.alert for case in CASES] == ALERTS or {case.alert for case in CASES} == set(ALERTS)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.alert)
def test_an_alert_fires_when_it_is_to_and_not_before(case: Case, tmp_path: Path) -> None:
    file = tmp_path / "test.yaml"
    file.write_text(
        yaml.safe_dump({"rule_files": [str(RULES)], "evaluation_interval": "1m", "tests": [promtool_test(case)]})
    )
    assert "SUCCESS" in promtool("test", "rules", str(file))
