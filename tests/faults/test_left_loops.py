"""Training loops that are left by `break` with one more batch drawn: a rank is lost around that place, and behind it."""

from __future__ import annotations

from pathlib import Path

import pytest
from faults.conftest import Undisturbed
from support.relay_run import assert_unharmed, relay

SCRIPT, RANKS = "early_break.py", 2


@pytest.mark.parametrize("shape", ["for", "while", "asked"])
@pytest.mark.parametrize("step", [5, 15])
def test_a_rank_is_lost_behind_the_last_step(shape: str, step: int, undisturbed: Undisturbed, tmp_path: Path) -> None:
    fault = f"kill:rank={step % 2},step={step},phase=after-step"
    run = relay(tmp_path, SCRIPT, shape, ranks=RANKS, inject=[fault])
    assert_unharmed(run, undisturbed(SCRIPT, shape, ranks=RANKS), RANKS, [fault], 1)


@pytest.mark.parametrize("shape", ["for", "while", "asked"])
@pytest.mark.parametrize("place", ["left-1", "evaluation-0-8", "evaluation-2-16", "end"])
def test_a_rank_is_lost_behind_the_loop(shape: str, place: str, undisturbed: Undisturbed, tmp_path: Path) -> None:
    struck = tmp_path / "struck"
    run = relay(tmp_path, SCRIPT, shape, ranks=RANKS, environment={"STRIKE": f"{place}:1", "STRUCK": str(struck)})
    assert struck.exists(), run.told()
    assert_unharmed(run, undisturbed(SCRIPT, shape, ranks=RANKS), RANKS, [], 1)
