"""The command: what it compares, prints and writes, and what it refuses."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from torchrelay.cli.commands.bench import bench
from torchrelay.cli.spare_plan.command import SparePlanOptions, best, compare
from torchrelay.cli.spare_plan.trace import ClusterSite
from torchrelay.cli.spare_plan.ways import Way, WayCosts


def options(**site: float) -> SparePlanOptions:
    of = {"gpus": 1024, "gpus_per_node": 8, "hours_per_failure": 50_000.0} | site
    return SparePlanOptions(ClusterSite(**of), WayCosts(), 30.0, (0, 8, 32), 3, 0, None, None)  # type: ignore[arg-type]  # numbers


def test_each_way_is_played_with_each_number_of_spares_and_preemption_with_none() -> None:
    rows, failures = compare(options())
    assert {(row.way, row.spares) for row in rows} == {
        *((way, n) for way in Way if way is not Way.PREEMPT for n in (0, 8, 32)),
        (Way.PREEMPT, 0),
    }
    assert failures == pytest.approx(14.7, rel=0.5)
    assert best(rows, Way.TORCHRELAY).goodput == max(row.goodput for row in rows if row.way is Way.TORCHRELAY)


def test_a_cluster_that_never_fails_needs_no_spare() -> None:
    rows, failures = compare(options(hours_per_failure=1e12))
    assert failures == 0
    assert all(best(rows, way).spares == 0 for way in Way)


def test_the_command_prints_the_best_numbers_and_writes_all_of_them(tmp_path: Path) -> None:
    told = tmp_path / "spares.json"
    done = CliRunner().invoke(bench, ["spares", "--traces", "2", "--days", "10", "--spares", "8", "--out", str(told)])
    assert done.exit_code == 0, done.output
    assert "checkpoint and restart: best with 8 spare GPUs" in " ".join(done.output.split())
    found = json.loads(told.read_text())
    assert found["options"]["site"]["gpus"] == 1024
    assert {row["way"] for row in found["rows"]} == {way.value for way in Way}


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--gpus", "4"], "--gpus 4 is less than one node has"),
        (["--gpus", "32"], "--group-gpus 64 is more than the job has"),
    ],
)
def test_numbers_that_cannot_be_meant_are_refused(arguments: list[str], words: str) -> None:
    done = CliRunner().invoke(bench, ["spares", *arguments])
    assert done.exit_code != 0
    assert words in str(done.exception)
