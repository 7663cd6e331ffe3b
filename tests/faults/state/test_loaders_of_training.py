"""Steps make the data loader that they go on drawing from: a new process makes it, too, and goes on in the middle."""

from __future__ import annotations

from pathlib import Path

import pytest
from faults.conftest import Undisturbed
from support.cells import few
from support.relay_run import assert_unharmed, relay

SCRIPT, RANKS = "loaders_of_training.py", 2


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "faults"),
    few(
        1,
        [
            ("subset", ["kill:rank=0,step=8,phase=backward", "kill:rank=1,step=14,phase=data"]),
            ("fresh", ["kill:rank=1,step=7,phase=data", "kill:rank=1,step=15,phase=backward"]),
            ("first", ["kill:rank=1,step=9,phase=backward"]),
            ("kept", ["kill:rank=1,step=7,phase=data", "kill:rank=0,step=16,phase=after-step"]),
            ("workers", ["kill:rank=0,step=9,phase=backward", "kill:rank=1,step=13,phase=data"]),
            ("sampled", ["kill:rank=0,step=5,phase=after-step", "kill:rank=1,step=11,phase=backward"]),
        ],
    ),
)
def test_a_rank_is_replaced(kind: str, faults: list[str], undisturbed: Undisturbed, tmp_path: Path) -> None:
    run = relay(tmp_path, SCRIPT, kind, ranks=RANKS, spares=2, inject=faults)
    assert_unharmed(run, undisturbed(SCRIPT, kind, ranks=RANKS), RANKS, faults, len(faults))


def test_one_that_cannot_be_made_again_is_told_before_a_rank_is_lost(tmp_path: Path) -> None:
    run = relay(tmp_path, SCRIPT, "unseen", ranks=RANKS)
    assert run.status == 0, run.told()
    assert "the iterator of a data loader that training has made over what cannot be captured" in run.told()


@pytest.mark.slow
@pytest.mark.core
def test_one_that_the_first_step_makes_in_front_of_a_loop_of_its_own_goes_on_where_it_was(
    undisturbed: Undisturbed, tmp_path: Path
) -> None:
    """At the head of that loop it is there, as what set-up makes would be, and no new process makes it before it enters."""
    script, faults = "made_in_first_step.py", ["kill:rank=1,step=4,phase=forward", "kill:rank=0,step=7,phase=backward"]
    run = relay(tmp_path, script, ranks=RANKS, spares=2, inject=faults)
    assert_unharmed(run, undisturbed(script, ranks=RANKS), RANKS, faults, len(faults))


@pytest.mark.slow
@pytest.mark.parametrize("step", few(1, [4, 3, 7]))
def test_one_whose_sampler_leads_to_much_data_of_set_up_goes_on(
    step: int, undisturbed: Undisturbed, tmp_path: Path
) -> None:
    fault = f"kill:rank=1,step={step},phase=forward"
    run = relay(tmp_path, "sampler_as_data.py", ranks=RANKS, inject=[fault])
    assert_unharmed(run, undisturbed("sampler_as_data.py", ranks=RANKS), RANKS, [fault], 1)
