"""What TorchScript computes depends on how often it was called, and its modules are kept in C++."""

from __future__ import annotations

from pathlib import Path

import pytest
from faults.conftest import Undisturbed
from support.cells import few
from support.relay_run import assert_unharmed, relay

SCRIPT, RANKS = "scripted.py", 2


@pytest.mark.slow
@pytest.mark.parametrize(
    ("how", "faults"),
    few(
        1,
        [
            ("function", ["kill:rank=1,step=3,phase=backward", "kill:rank=0,step=9,phase=after-step"]),
            ("statistics", ["kill:rank=1,step=6,phase=backward", "stop:rank=0,step=12,phase=forward"]),
            ("whole", ["kill:rank=0,step=1,phase=backward", "kill:rank=1,step=2,phase=after-step"]),
            ("evaluated", ["kill:rank=0,step=2,phase=backward", "kill:rank=1,step=11,phase=optimizer"]),
            ("traced", ["kill:rank=1,step=2,phase=backward", "kill:rank=0,step=9,phase=forward"]),
            ("old", ["kill:rank=0,step=3,phase=optimizer", "kill:rank=1,step=10,phase=after-step"]),
            ("function", ["kill:rank=0,step=1,phase=backward", "kill:rank=1,step=4,phase=forward"]),
            ("function", ["kill:rank=1,step=2,phase=after-step", "stop:rank=0,step=8,phase=backward"]),
            ("statistics", ["kill:rank=0,step=2,phase=after-step", "kill:rank=1,step=3,phase=optimizer"]),
            ("whole", ["kill:rank=1,step=7,phase=forward", "kill:rank=0,step=13,phase=after-step"]),
        ],
    ),
)
def test_a_rank_that_is_lost_leaves_no_trace(
    how: str, faults: list[str], undisturbed: Undisturbed, tmp_path: Path
) -> None:
    run = relay(tmp_path, SCRIPT, how, ranks=RANKS, spares=len(faults), inject=faults)
    assert_unharmed(run, undisturbed(SCRIPT, how, ranks=RANKS), RANKS, faults, len(faults))
