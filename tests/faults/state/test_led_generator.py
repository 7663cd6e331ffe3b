"""A generator of set-up that cannot be put to where it stood is asked as often as the lost rank has asked."""

from __future__ import annotations

from pathlib import Path

import pytest
from faults.conftest import Undisturbed
from support.relay_run import assert_unharmed, relay

SCRIPT, RANKS = "led_generator.py", 2
FAULTS = ["kill:rank=1,step=7,phase=backward", "kill:rank=0,step=12,phase=after-step"]


@pytest.mark.slow
def test_a_process_that_takes_over_goes_on_with_the_same_items(undisturbed: Undisturbed, tmp_path: Path) -> None:
    run = relay(tmp_path, SCRIPT, "rows", ranks=RANKS, spares=2, inject=FAULTS)
    assert_unharmed(run, undisturbed(SCRIPT, "rows", ranks=RANKS), RANKS, FAULTS, 2)


@pytest.mark.slow
def test_one_that_goes_by_trainings_progress_is_refused(tmp_path: Path) -> None:
    run = relay(tmp_path, SCRIPT, "progress", ranks=RANKS, spares=1, inject=FAULTS[:1])
    assert run.status != 0, run.told()
    assert run.committed() == [], run.told()
    assert "a generator of set-up yields other items here" in run.told()
