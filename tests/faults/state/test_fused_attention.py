"""Attention whose kernels torch chooses by whether a mode is on: nothing that follows a step may change the choice."""

from __future__ import annotations

from pathlib import Path

import pytest
from faults.conftest import Undisturbed
from support.cells import few
from support.relay_run import assert_unharmed, relay

SCRIPT, RANKS = "fused_attention.py", 2


@pytest.mark.slow
@pytest.mark.parametrize(
    "faults",
    few(
        1,
        [
            ["kill:rank=0,step=9,phase=after-step", "kill:rank=1,step=14,phase=optimizer"],
            ["kill:rank=1,step=3,phase=after-step", "stop:rank=0,step=10,phase=after-step"],
        ],
    ),
)
def test_a_rank_that_is_lost_behind_its_update_evaluates_the_same(
    faults: list[str], undisturbed: Undisturbed, tmp_path: Path
) -> None:
    run = relay(tmp_path, SCRIPT, ranks=RANKS, spares=len(faults), inject=faults)
    assert_unharmed(run, undisturbed(SCRIPT, ranks=RANKS), RANKS, faults, len(faults))
