"""Large tensors that a step makes, uses before its update and drops behind it need not be known to a process that takes over."""

from __future__ import annotations

from pathlib import Path

import pytest
from faults.conftest import Undisturbed
from support.cells import few
from support.relay_run import assert_unharmed, relay

SCRIPT, RANKS = "sample_gradients.py", 2


@pytest.mark.slow
@pytest.mark.parametrize("fault", few(1, ["kill:rank=1,step=9,phase=after-step", "kill:rank=0,step=8,phase=gate"]))
def test_a_rank_that_is_lost_behind_its_update_is_replaced(
    fault: str, undisturbed: Undisturbed, tmp_path: Path
) -> None:
    run = relay(tmp_path, SCRIPT, "dropped", ranks=RANKS, inject=[fault])
    assert_unharmed(run, undisturbed(SCRIPT, "dropped", ranks=RANKS), RANKS, [fault], 1)
    assert {done["kind"] for done in run.committed()} == {"unplanned"}, run.told()


@pytest.mark.slow
def test_a_process_that_comes_to_a_read_that_no_step_had_is_refused(tmp_path: Path) -> None:
    fault = "kill:rank=1,step=12,phase=after-step"
    run = relay(tmp_path, SCRIPT, "read", ranks=RANKS, inject=[fault])
    assert any(event["fault"] == fault for event in run.named("fault_injected")), run.told()
    assert any("which it has made for itself, after its optimizer step" in e["text"] for e in run.named("decision")), (
        run.told()
    )
