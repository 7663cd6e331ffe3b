"""What scripts do to their optimizer's state beside the update, and to what it updates at all."""

from __future__ import annotations

from pathlib import Path

import pytest
from faults.conftest import Undisturbed
from support.cells import few, only_in_long
from support.relay_run import assert_unharmed, relay

RANKS = 2


@pytest.mark.core
@pytest.mark.slow
@pytest.mark.parametrize(
    "faults",
    few(
        1,
        [
            ["kill:rank=1,step=9,phase=backward", "kill:rank=0,step=17,phase=forward"],
            ["kill:rank=0,step=10,phase=after-step", "kill:rank=1,step=14,phase=after-step"],
            ["kill:rank=0,step=11,phase=backward", "kill:rank=1,step=18,phase=backward"],
            ["kill:rank=1,step=12,phase=forward", "kill:rank=0,step=16,phase=optimizer"],
        ],
    ),
)
def test_the_state_of_an_optimizer_goes_back_with_the_step(
    faults: list[str], undisturbed: Undisturbed, tmp_path: Path
) -> None:
    script = "optimizer_state.py"
    run = relay(tmp_path, script, ranks=RANKS, spares=len(faults), inject=faults)
    assert_unharmed(run, undisturbed(script, ranks=RANKS), RANKS, faults, len(faults))


@only_in_long
@pytest.mark.parametrize(
    "faults",
    few(
        1,
        [
            ["kill:rank=1,step=9,phase=backward", "kill:rank=0,step=15,phase=after-step"],
            ["kill:rank=0,step=7,phase=forward", "kill:rank=1,step=8,phase=optimizer"],
        ],
    ),
)
def test_parameters_that_training_unfreezes_go_on_training(
    faults: list[str], undisturbed: Undisturbed, tmp_path: Path
) -> None:
    script = "unfrozen.py"
    run = relay(tmp_path, script, ranks=RANKS, spares=len(faults), inject=faults)
    assert_unharmed(run, undisturbed(script, ranks=RANKS), RANKS, faults, len(faults))
