"""What `make bench-check` refuses, from samples that scatter, and how often it measures again."""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

BENCH = Path(__file__).resolve().parents[3] / "bench"
OURS = ("check", "judging", "ratios", "transfer_rate", "start_up", "step_overhead", "calibration")


@pytest.fixture
def check(monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    monkeypatch.syspath_prepend(str(BENCH))
    import check

    yield check
    for name in OURS:
        sys.modules.pop(name, None)


@pytest.fixture
def judging(check: ModuleType) -> ModuleType:
    return sys.modules["judging"]


def test_a_ratio_is_kept_up_to_its_bound_and_refused_above(judging: ModuleType) -> None:
    assert judging.judge("x", [1.2, 1.2, 1.2], 1.2).is_kept
    assert not judging.judge("x", [1.21, 1.21, 1.21], 1.2).is_kept


def test_a_ratio_above_its_bound_is_kept_within_its_own_spread(judging: ModuleType) -> None:
    assert judging.judge("x", [1.0, 1.3, 1.6], 1.2).is_kept
    assert not judging.judge("x", [1.29, 1.3, 1.31], 1.2).is_kept


def test_one_wild_sample_changes_neither_median_nor_spread_much(judging: ModuleType) -> None:
    verdict = judging.judge("x", [1.0, 1.01, 1.02, 1.01, 1.0, 1.02, 50.0], 1.1)
    assert verdict.is_kept
    assert verdict.spread < 0.02


@pytest.mark.parametrize("samples", [[], [math.nan, 1.0], [math.inf]])
def test_what_was_not_measured_is_refused(judging: ModuleType, samples: list[float]) -> None:
    assert not judging.judge("x", samples, 1.0).is_kept


def test_a_ratio_without_a_bound_is_an_error(judging: ModuleType) -> None:
    with pytest.raises(KeyError):
        judging.judge_all({"new": [1.0]}, {"old": 1.0})


def _measure(turns: list[float], made: list[str], name: str):  # type: ignore[no-untyped-def]
    def measure(amount: object, folder: Path) -> dict[str, list[float]]:
        made.append(name)
        return {name: [turns.pop(0)]}

    return measure


def test_only_what_was_refused_is_measured_again(check: ModuleType, capsys: pytest.CaptureFixture[str]) -> None:
    made: list[str] = []
    measurements = {"a": _measure([1.0], made, "a"), "b": _measure([9.0, 1.0], made, "b")}
    samples, refused = check.check(measurements, {"a": 2.0, "b": 2.0}, check.SHORT, 3)
    assert (made, refused) == (["a", "b", "b"], [])
    assert samples == {"a": [1.0], "b": [1.0]}
    told = capsys.readouterr().out
    assert "try 1: REFUSED b: 9.000" in told
    assert "try 2: ok      b: 1.000" in told


def test_what_is_refused_each_time_is_told_after_the_last_try(check: ModuleType) -> None:
    made: list[str] = []
    _, refused = check.check({"b": _measure([9.0, 8.0, 7.0], made, "b")}, {"b": 2.0}, check.SHORT, 3)
    assert len(made) == 3
    assert [verdict.median for verdict in refused] == [7.0]


def test_results_of_one_measurement_leave_the_others_as_they_are(check: ModuleType, tmp_path: Path) -> None:
    path, bounds = tmp_path / "results" / "machine.json", {"a": 2.0, "b": 2.0}
    check.write_results(path, {"a": [1.0], "b": [1.5]}, bounds, 0.5)
    check.write_results(path, {"b": [1.25, 1.75, 1.25]}, bounds, 0.5)
    ratios = json.loads(path.read_text())["ratios"]
    assert (ratios["a"]["median"], ratios["b"]["median"], ratios["b"]["samples"]) == (1.0, 1.25, [1.25, 1.75, 1.25])


def test_a_run_that_failed_is_tried_again_and_refused_in_the_end(check: ModuleType) -> None:
    def fails(amount: object, folder: Path) -> dict[str, list[float]]:
        made.append("c")
        sys.exit("the job was not protected")

    made: list[str] = []
    _, refused = check.check({"c": fails}, {"c": 2.0}, check.SHORT, 3)
    assert (made, [verdict.is_kept for verdict in refused]) == (["c", "c", "c"], [False])
