"""Second copies of parameters, in attributes of these, that take their memory's place in the update."""

from __future__ import annotations

from pathlib import Path

import pytest
from faults.conftest import Undisturbed
from support.relay_run import assert_unharmed, relay

SCRIPT, RANKS = "second_copies.py", 2


@pytest.mark.parametrize("fault", ["kill:rank=1,step=9,phase=after-step", "kill:rank=0,step=6,phase=backward"])
def test_the_numbers_are_those_without_a_loss(fault: str, undisturbed: Undisturbed, tmp_path: Path) -> None:
    run = relay(tmp_path, SCRIPT, ranks=RANKS, inject=[fault])
    assert_unharmed(run, undisturbed(SCRIPT, ranks=RANKS), RANKS, [fault], 1)


def test_no_rank_is_replaced_that_has_them_in_parameters_of_the_first_fsdp(tmp_path: Path) -> None:
    fault = "kill:rank=1,step=6,phase=after-step"
    run = relay(tmp_path, SCRIPT, "fsdp", ranks=RANKS, inject=[fault], options=["--buddy-every=0"])
    assert run.faults() == [fault], run.told()
    assert run.committed() == [], run.told()
    assert "second: a tensor in an attribute of FullyShardedDataParallel's parameters" in str(run.named("coverage"))
