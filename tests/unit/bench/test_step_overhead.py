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
    for name in ("step_overhead", "calibration", "in_turns"):
        sys.modules.pop(name, None)


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


SCRIPT = """
    for i in range(8):
        step()
        turn(2)
"""


def test_protection_goes_off_and_on_and_stays_whole(
    bench: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    import in_turns

    script = LoopScript(monkeypatch, tmp_path)
    monkeypatch.setattr("builtins.__torchrelay__.tracker", lambda: script.tracker, raising=False)
    script.run(SCRIPT, turn=in_turns.turn)
    assert script.engine.capturing, script.sent  # a fault of ours would have switched it off for good
    assert script.engine.step.gates_passed == 8
    assert [number for number, _ in script.boundaries] == [0, 1, 4, 5]


def test_a_shim_that_has_given_up_is_not_measured(
    bench: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    import in_turns

    script = LoopScript(monkeypatch, tmp_path)
    monkeypatch.setattr("builtins.__torchrelay__.tracker", lambda: script.tracker, raising=False)
    script.tracker.listener = script.engine
    script.engine.capturing = False
    with pytest.raises(RuntimeError, match="switched protection off"):
        in_turns.turn(2)
