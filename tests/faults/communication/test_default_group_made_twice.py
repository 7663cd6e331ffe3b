"""A script that destroys its default process group and makes another one, in a loop around its training loop."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.relay_run import assert_unharmed, relay

SCRIPT, RANKS = "two_groups.py", 2


@pytest.mark.core
def test_ranks_are_replaced_in_both_groups_and_while_one_is_made_and_meet_in_the_store_that_rank_0_has_begun_with(
    tmp_path: Path,
) -> None:
    # Under torchrun members of the second group can find the addresses of the first one's in the store: it fails now and then.
    undisturbed = relay(tmp_path / "undisturbed", SCRIPT, ranks=RANKS, spares=0)
    assert undisturbed.status == 0, undisturbed.told()
    assert "no longer protected" not in undisturbed.stderr, undisturbed.told()
    faults = [
        "kill:rank=0,step=5,phase=after-step",
        "kill:rank=1,step=8,phase=after-step",  # the last of the first part: the other rank waits in init_process_group
        "kill:rank=0,step=12,phase=backward",
    ]
    run = relay(tmp_path / "struck", SCRIPT, ranks=RANKS, spares=3, inject=faults)
    assert_unharmed(run, undisturbed.out, RANKS, faults, 3)
