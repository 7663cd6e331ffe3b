"""A script that destroys its default process group and makes another one, in a loop around its training loop."""

from __future__ import annotations

from pathlib import Path

from faults.conftest import Undisturbed
from support.relay_run import assert_unharmed, relay

SCRIPT, RANKS = "two_groups.py", 2


def test_ranks_are_replaced_in_the_first_group_while_the_second_is_made_and_in_the_second(
    undisturbed: Undisturbed, tmp_path: Path
) -> None:
    faults = [
        "kill:rank=0,step=5,phase=after-step",
        "kill:rank=1,step=8,phase=after-step",  # the last of the first part: the other rank waits in init_process_group
        "kill:rank=0,step=12,phase=backward",
    ]
    run = relay(tmp_path, SCRIPT, ranks=RANKS, spares=3, inject=faults)
    assert_unharmed(run, undisturbed(SCRIPT, ranks=RANKS), RANKS, faults, 3)
