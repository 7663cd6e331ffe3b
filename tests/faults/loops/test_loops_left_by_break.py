"""Training loops that are left by `break` with one more batch drawn: a rank is lost around that place, and behind it."""

from __future__ import annotations

from pathlib import Path

import pytest
from faults.conftest import Undisturbed
from support.cells import few, only_in_long
from support.relay_run import assert_unharmed, relay
from support.training import differences

SCRIPT, RANKS = "early_break.py", 2


SHAPES = ["for", "while", "asked", "bare"]
PLACES = ["left-1", "evaluation-0-8", "evaluation-2-16", "evaluated-1", "end"]
FIRST = [("while", "left-1"), ("for", "evaluation-0-8"), ("asked", "evaluated-1"), ("bare", "left-1"), ("while", "end")]
OTHERS = [(shape, place) for shape in ("for", "while", "asked") for place in PLACES] + [("bare", "end")]


@pytest.mark.slow
@pytest.mark.parametrize(("shape", "step"), few(1, [(shape, step) for step in (15, 5) for shape in SHAPES]))
def test_a_rank_is_lost_behind_the_last_step(shape: str, step: int, undisturbed: Undisturbed, tmp_path: Path) -> None:
    fault = f"kill:rank={step % 2},step={step},phase=after-step"
    run = relay(tmp_path, SCRIPT, shape, ranks=RANKS, inject=[fault])
    assert_unharmed(run, undisturbed(SCRIPT, shape, ranks=RANKS), RANKS, [fault], 1)


@pytest.mark.core
@pytest.mark.slow
@pytest.mark.parametrize(("shape", "place"), few(1, [*FIRST, *(cell for cell in OTHERS if cell not in FIRST)]))
def test_a_rank_is_lost_behind_the_loop(shape: str, place: str, undisturbed: Undisturbed, tmp_path: Path) -> None:
    struck = tmp_path / "struck"
    run = relay(tmp_path, SCRIPT, shape, ranks=RANKS, environment={"STRIKE": f"{place}:1", "STRUCK": str(struck)})
    assert struck.exists(), run.told()
    assert_unharmed(run, undisturbed(SCRIPT, shape, ranks=RANKS), RANKS, [], 1)


@only_in_long
def test_gradients_of_the_last_step_are_there_behind_the_loop(undisturbed: Undisturbed, tmp_path: Path) -> None:
    struck = tmp_path / "struck"
    strike = {"STRIKE": "evaluation-2-16:1", "STRUCK": str(struck)}
    run = relay(tmp_path, SCRIPT, "graded", ranks=RANKS, environment=strike)
    assert struck.exists(), run.told()
    assert_unharmed(run, undisturbed(SCRIPT, "graded", ranks=RANKS), RANKS, [], 1)


@only_in_long
@pytest.mark.parametrize("second", few(1, [1, 0]))
def test_a_second_rank_is_lost_behind_the_loop_that_the_first_one_s_successor_has_gone_past(
    second: int, undisturbed: Undisturbed, tmp_path: Path
) -> None:
    """First rank 0 in front of the head at which the loop is left; then its successor, or the one that gave to it."""
    struck, fault = tmp_path / "struck", "kill:rank=0,step=5,phase=after-step"
    strike = {"STRIKE": f"evaluation-0-8:{second}", "STRUCK": str(struck)}
    run = relay(tmp_path, SCRIPT, "for", ranks=RANKS, spares=2, inject=[fault], environment=strike)
    assert struck.exists(), run.told()
    assert_unharmed(run, undisturbed(SCRIPT, "for", ranks=RANKS), RANKS, [fault], 2)


@only_in_long
@pytest.mark.parametrize("place", few(1, ["evaluation-1-8", "left-1"]))
def test_without_a_spare_it_goes_on_there_in_a_later_run(place: str, undisturbed: Undisturbed, tmp_path: Path) -> None:
    first, second, struck = tmp_path / "first", tmp_path / "second", tmp_path / "struck"
    first.mkdir()
    second.mkdir()
    strike = {"STRIKE": f"{place}:1", "STRUCK": str(struck)}
    lost = relay(first, SCRIPT, "asked", ranks=RANKS, spares=0, environment=strike)
    assert struck.exists(), lost.told()
    assert lost.status == 75, lost.told()
    (saved,) = lost.named("checkpoint_saved")
    options = ["--resume", saved["directory"]]
    resumed = relay(second, SCRIPT, "asked", ranks=RANKS, spares=0, options=options, out=lost.out)
    assert resumed.status == 0, resumed.told()
    assert [m["kind"] for m in resumed.committed()] == ["resume"]
    assert differences(undisturbed(SCRIPT, "asked", ranks=RANKS), resumed.out, RANKS) == [], resumed.told()
