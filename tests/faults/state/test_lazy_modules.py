"""Parameters that get their shape in the first step: a rank is replaced from then on, and nothing is promised before."""

from __future__ import annotations

from pathlib import Path

import pytest
from faults.conftest import Undisturbed
from support.cells import few
from support.relay_run import assert_unharmed, relay

SCRIPT, RANKS = "lazy_modules.py", 2


@pytest.mark.slow
@pytest.mark.parametrize(
    ("how", "faults"),
    few(
        2,
        [
            ("torch", ["kill:rank=1,step=9,phase=backward", "kill:rank=0,step=15,phase=after-step"]),
            ("own", ["kill:rank=1,step=2,phase=backward", "kill:rank=1,step=3,phase=gate"]),
            ("unused", ["kill:rank=1,step=9,phase=backward", "kill:rank=0,step=15,phase=after-step"]),
            ("torch", ["kill:rank=0,step=1,phase=after-step"]),
        ],
    ),
)
def test_a_rank_is_replaced_once_there_are_shapes(
    how: str, faults: list[str], undisturbed: Undisturbed, tmp_path: Path
) -> None:
    run = relay(tmp_path, SCRIPT, how, ranks=RANKS, spares=len(faults), inject=faults)
    assert_unharmed(run, undisturbed(SCRIPT, how, ranks=RANKS), RANKS, faults, len(faults))


@pytest.mark.slow
def test_a_loss_in_the_step_that_makes_the_shapes_ends_in_a_checkpoint_and_breaks_no_promise(tmp_path: Path) -> None:
    run = relay(tmp_path, SCRIPT, "torch", ranks=RANKS, inject=["kill:rank=1,step=1,phase=backward"])
    assert run.status == 75, run.told()
    assert not run.named("incident"), run.told()
