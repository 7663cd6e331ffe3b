"""A loss in the midst of a step of the first FSDP: one rank is replaced, and nobody goes back to copies."""

from __future__ import annotations

from pathlib import Path

import pytest
from faults.conftest import Undisturbed
from support.relay_run import assert_unharmed, relay

SCRIPT, RANKS = "first_fsdp.py", 2
FAULTS = ("kill:rank=1,step=3,phase=forward", "kill:rank=0,step=6,phase=backward")


@pytest.mark.parametrize("kind", ["flat", "named", "kept", "accumulated", "across", "whole", "low", "again"])
def test_a_rank_is_replaced_that_is_lost_while_parameters_are_gathered(
    kind: str, undisturbed: Undisturbed, tmp_path: Path
) -> None:
    run = relay(tmp_path, SCRIPT, kind, ranks=RANKS, spares=2, inject=FAULTS)
    assert_unharmed(run, undisturbed(SCRIPT, kind, ranks=RANKS), RANKS, list(FAULTS), 2)
    assert [e["kind"] for e in run.named("migration_finished")] == ["unplanned", "unplanned"], run.told()
