"""An average around the model that one rank alone keeps: ranks know the model by the same name, and replace each other."""

from __future__ import annotations

from pathlib import Path

import pytest
from faults.conftest import Undisturbed
from support.cells import few
from support.relay_run import assert_unharmed, relay

SCRIPT, RANKS = "average_around.py", 2
ANY_COST = ["--cost-limit=0"]
"""On a busy machine the copies of these small steps may take too much of one."""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("how", "faults"),
    few(
        2,
        [
            ("model", ["kill:rank=0,step=18,phase=backward", "kill:rank=1,step=24,phase=after-step"]),
            ("frozen", ["kill:rank=1,step=19,phase=after-step"]),
            ("wrapper", ["kill:rank=1,step=19,phase=backward"]),
            ("list", ["kill:rank=1,step=19,phase=after-step"]),
            ("model", ["kill:rank=1,step=1,phase=backward"]),
            ("model", ["kill:rank=1,step=19,phase=gate"]),
            ("frozen", ["kill:rank=0,step=17,phase=after-step"]),
        ],
    ),
)
def test_a_rank_is_replaced_and_nobody_goes_back(
    how: str, faults: list[str], undisturbed: Undisturbed, tmp_path: Path
) -> None:
    run = relay(tmp_path, SCRIPT, how, ranks=RANKS, spares=len(faults), inject=faults, options=ANY_COST)
    assert_unharmed(run, undisturbed(SCRIPT, how, ranks=RANKS), RANKS, faults, len(faults))
    assert {done["kind"] for done in run.committed()} == {"unplanned"}, run.told()
