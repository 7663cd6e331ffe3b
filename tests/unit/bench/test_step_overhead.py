"""How steps with and without protection, in turns within one run, are compared."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest
from support.loop_script import LoopScript

BENCH = Path(__file__).resolve().parents[3] / "bench"


@pytest.fixture
def bench(monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    monkeypatch.syspath_prepend(str(BENCH))
    import step_overhead

    yield step_overhead
    for name in ("step_overhead", "calibration"):
        sys.modules.pop(name)


def _blocks(bench: ModuleType, *walls_s: float) -> list[tuple[object, bool]]:
    """Blocks of equal steps after a first one that is an outlier; the first is protected."""
    return [
        (bench.Steps(wall_s if step else 50.0, wall_s / 2), number % 2 == 0)
        for number, wall_s in enumerate(walls_s)
        for step in range(bench.BLOCK_STEPS)
    ]


def test_each_block_is_compared_with_the_mean_of_its_neighbours(bench: ModuleType) -> None:
    found = bench.by_turns(_blocks(bench, 11.0, 10.0, 13.0, 12.0))
    assert [(on.wall_s, off.wall_s) for on, off in found] == [(12.0, 10.0), (13.0, 11.0)]
    assert [(on.cpu_s, off.cpu_s) for on, off in found] == [(6.0, 5.0), (6.5, 5.5)]


def test_a_machine_that_gets_slower_all_the_time_changes_no_ratio(bench: ModuleType) -> None:
    found = bench.by_turns(_blocks(bench, *(1.0 + 0.1 * n for n in range(9))))
    assert all(on.wall_s / off.wall_s == pytest.approx(1.0) for on, off in found)


def test_an_unfinished_block_at_the_end_is_left_out(bench: ModuleType) -> None:
    steps = _blocks(bench, 11.0, 10.0, 13.0)
    assert len(bench.by_turns(steps[:-1])) == 0
    assert len(bench.by_turns(steps)) == 1


def test_the_steps_of_a_run_are_read_with_whether_they_were_protected(bench: ModuleType, tmp_path: Path) -> None:
    (tmp_path / "steps").write_text("0.5 0.25 1\n0.4 0.2 0\n")
    assert bench.read_steps(tmp_path / "steps") == [(bench.Steps(0.5, 0.25), True), (bench.Steps(0.4, 0.2), False)]


def test_the_engine_has_what_is_switched_off_and_on(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    engine = LoopScript(monkeypatch, tmp_path).engine
    assert all(map(callable, (engine.take_boundary, engine.updates.gate, engine.updates.passed, engine.alive)))
