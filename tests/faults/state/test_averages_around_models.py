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


@pytest.mark.slow
@pytest.mark.parametrize("fault", few(1, ["kill:rank=0,step=24,phase=after-step", "kill:rank=1,step=24,phase=gate"]))
def test_one_that_is_written_to_past_torch_s_counts_is_saved_as_the_lost_rank_had_it(
    fault: str, undisturbed: Undisturbed, tmp_path: Path
) -> None:
    run = relay(tmp_path, "saved_average.py", ranks=2, inject=[fault])
    assert_unharmed(run, undisturbed("saved_average.py", ranks=2), 2, [fault], 1)
