"""Arrays that training has made are carried, large ones and those of objects too; of what cannot be carried nothing is promised."""

from __future__ import annotations

from pathlib import Path

import pytest
from faults.conftest import Undisturbed
from support.cells import few, only_in_long
from support.relay_run import assert_unharmed, relay

SCRIPT, RANKS = "evaluator.py", 2
FAULTS = [
    "kill:rank=1,step=20,phase=backward",
    "kill:rank=0,step=24,phase=after-step",
    "stop:rank=1,step=40,phase=forward",
    "kill:rank=0,step=33,phase=data",
]


@pytest.mark.core
@pytest.mark.slow
@pytest.mark.parametrize("fault", few(1, FAULTS))
def test_a_rank_is_replaced(fault: str, undisturbed: Undisturbed, tmp_path: Path) -> None:
    run = relay(tmp_path, SCRIPT, ranks=RANKS, inject=[fault])
    assert_unharmed(run, undisturbed(SCRIPT, ranks=RANKS), RANKS, [fault], 1)


@only_in_long
def test_a_new_process_hands_them_on(undisturbed: Undisturbed, tmp_path: Path) -> None:
    faults = ["kill:rank=1,step=20,phase=backward", "kill:rank=1,step=24,phase=backward"]
    run = relay(tmp_path, SCRIPT, ranks=RANKS, spares=2, inject=faults)
    assert_unharmed(run, undisturbed(SCRIPT, ranks=RANKS), RANKS, faults, 2)


@only_in_long
def test_nothing_is_promised_once_a_list_holds_what_cannot_be_carried(tmp_path: Path) -> None:
    fault = "kill:rank=1,step=20,phase=backward"
    run = relay(tmp_path, SCRIPT, "endless", ranks=RANKS, inject=[fault])
    assert run.faults() == [fault]
    assert run.status == 137, run.told()
    assert run.committed() == []
    assert (
        "evaluator.images: training has put into this list what cannot be captured: no rank can be replaced"
        in run.stderr
    )
    assert "a promise was not kept" not in run.stderr


BUFFER = "replay_buffer.py"
LOST = ["kill:rank=1,step=16,phase=backward", "kill:rank=0,step=20,phase=after-step"]


@only_in_long
def test_a_buffer_that_set_up_has_made_goes_on_with_what_steps_have_written(
    undisturbed: Undisturbed, tmp_path: Path
) -> None:
    run = relay(tmp_path, BUFFER, ranks=RANKS, spares=2, inject=LOST)
    assert_unharmed(run, undisturbed(BUFFER, ranks=RANKS), RANKS, LOST, 2)
