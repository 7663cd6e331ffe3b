"""A device mesh makes the process group: nobody has named its back end. And no rank waits for others at the end."""

from __future__ import annotations

from pathlib import Path

import pytest
from faults.conftest import Undisturbed
from support.cells import few
from support.relay_run import assert_unharmed, relay

SCRIPT, RANKS = "mesh_alone.py", 2


@pytest.mark.slow
@pytest.mark.parametrize(
    "faults",
    few(
        1,
        [
            pytest.param(
                ["kill:rank=1,step=5,phase=backward", "kill:rank=1,step=14,phase=after-step"], id="and an earlier one"
            ),
            pytest.param(["kill:rank=0,step=14,phase=after-step"], id="rank 0 after the last step"),
        ],
    ),
)
def test_a_rank_is_lost_while_others_have_reached_the_end(
    faults: list[str], undisturbed: Undisturbed, tmp_path: Path
) -> None:
    run = relay(tmp_path, SCRIPT, ranks=RANKS, spares=len(faults), inject=faults)
    assert_unharmed(run, undisturbed(SCRIPT, ranks=RANKS), RANKS, faults, len(faults))
    names = [line for line in run.stdout.splitlines() if "back ends" in line]
    assert names, run.told()
    assert {line.split("back ends ")[1] for line in names} == {"undefined undefined undefined and then undefined"}
