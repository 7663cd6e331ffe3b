"""Models that are spread over ranks: shards have replicas under HSDP, and each phase leaves something else half done."""

from __future__ import annotations

from pathlib import Path

import pytest
from faults.conftest import Undisturbed
from support.relay_run import assert_unharmed, relay

SCRIPT, RANKS = "sharded.py", 4


@pytest.mark.core
@pytest.mark.parametrize(
    "faults",
    [
        pytest.param(
            ["kill:rank=3,step=1,phase=backward", "kill:rank=0,step=9,phase=backward"],
            id="between two groups' reductions, in the first step and later",
        ),
        pytest.param(
            ["kill:rank=2,step=5,phase=optimizer", "kill:rank=1,step=10,phase=after-step"],
            id="past the gate, while its shard group waits and the other goes on",
        ),
    ],
)
def test_a_loss_of_a_sharded_rank_leaves_no_trace(faults: list[str], undisturbed: Undisturbed, tmp_path: Path) -> None:
    run = relay(tmp_path, SCRIPT, ranks=RANKS, spares=len(faults), inject=faults)
    assert_unharmed(run, undisturbed(SCRIPT, ranks=RANKS), RANKS, faults, len(faults))
