"""A step may change what its loop is given: batches that are objects, or objects that are state and no batch to be compared."""

from __future__ import annotations

from pathlib import Path

import pytest
from faults.conftest import Undisturbed
from support.cells import few
from support.relay_run import assert_unharmed, relay

SCRIPT, RANKS = "members.py", 2
FAULTS = ["kill:rank=1,step=7,phase=backward", "kill:rank=0,step=14,phase=after-step"]


@pytest.mark.core
@pytest.mark.slow
def test_a_rank_that_is_lost_leaves_no_trace(undisturbed: Undisturbed, tmp_path: Path) -> None:
    run = relay(tmp_path, SCRIPT, "kept", ranks=RANKS, spares=2, inject=FAULTS)
    assert_unharmed(run, undisturbed(SCRIPT, "kept", ranks=RANKS), RANKS, FAULTS, 2)


@pytest.mark.slow
def test_nobody_takes_over_where_only_the_loop_has_them(tmp_path: Path) -> None:
    """A new process has these objects as set-up has made them."""
    run = relay(tmp_path, SCRIPT, "loop", ranks=RANKS, spares=1, inject=FAULTS[:1])
    assert run.status == 75, run.told()
    assert any("yields another item there than in the lost rank" in event["reason"] for event in run.named("job_fell"))


@pytest.mark.slow
@pytest.mark.parametrize("kind", few(1, ["shuffled", "fields", "popped", "ordered"]))
def test_a_step_that_is_done_again_is_given_its_objects_as_they_were(
    kind: str, undisturbed: Undisturbed, tmp_path: Path
) -> None:
    script = "changed_items.py"
    run = relay(tmp_path, script, kind, ranks=RANKS, spares=2, inject=FAULTS)
    assert_unharmed(run, undisturbed(script, kind, ranks=RANKS), RANKS, FAULTS, 2)
