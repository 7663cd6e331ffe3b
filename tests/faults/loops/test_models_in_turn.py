"""Models that take turns, and a variable with the one whose turn it is: a new process comes to a loop where it is not bound yet."""

from __future__ import annotations

from pathlib import Path

import pytest
from faults.conftest import Undisturbed
from support.cells import few
from support.relay_run import assert_unharmed, relay

SCRIPT, RANKS = "folds.py", 2


@pytest.mark.slow
@pytest.mark.parametrize(
    "faults",
    few(
        1,
        [
            pytest.param(["kill:rank=1,step=15,phase=forward", "kill:rank=1,step=19,phase=gate"], id="second epoch"),
            pytest.param(
                ["kill:rank=1,step=7,phase=backward", "kill:rank=0,step=11,phase=after-step"], id="first epoch"
            ),
        ],
    ),
)
def test_a_rank_is_replaced_while_another_model_trains(
    faults: list[str], undisturbed: Undisturbed, tmp_path: Path
) -> None:
    run = relay(tmp_path, SCRIPT, ranks=RANKS, spares=len(faults), inject=faults)
    assert_unharmed(run, undisturbed(SCRIPT, ranks=RANKS), RANKS, faults, len(faults))
