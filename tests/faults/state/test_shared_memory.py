"""Numbers in shared memory decide what a loader yields: a new process has them as the lost one had, or does not take over."""

from __future__ import annotations

from pathlib import Path

import pytest
from faults.conftest import Undisturbed
from support.cells import few
from support.relay_run import assert_unharmed, relay

SCRIPT, RANKS = "shared_counter.py", 2


@pytest.mark.slow
@pytest.mark.parametrize(
    ("where", "faults"),
    few(
        1,
        [
            ("workers", ["kill:rank=0,step=9,phase=after-step", "kill:rank=1,step=13,phase=backward"]),
            ("here", ["kill:rank=1,step=5,phase=backward", "kill:rank=0,step=17,phase=after-step"]),
            ("spawned", ["kill:rank=1,step=9,phase=backward"]),
            ("workers", ["stop:rank=1,step=4,phase=forward", "kill:rank=0,step=16,phase=after-step"]),
        ],
    ),
)
def test_a_rank_that_is_lost_leaves_no_trace(
    where: str, faults: list[str], undisturbed: Undisturbed, tmp_path: Path
) -> None:
    run = relay(tmp_path, SCRIPT, where, ranks=RANKS, spares=len(faults), inject=faults)
    assert_unharmed(run, undisturbed(SCRIPT, where, ranks=RANKS), RANKS, faults, len(faults))


@pytest.mark.core
@pytest.mark.slow
def test_nobody_takes_over_with_another_batch(tmp_path: Path) -> None:
    """The counter is a variable of a function: nothing knows of it but the batch."""
    run = relay(tmp_path, SCRIPT, "hidden", ranks=RANKS, spares=1, inject=["kill:rank=1,step=12,phase=backward"])
    assert run.status == 75, run.told()
    assert any("yields another item there than in the lost rank" in event["reason"] for event in run.named("job_fell"))
