"""Processes that set-up starts for itself, and their sockets' names: those of the lost rank may be there still."""

from __future__ import annotations

from pathlib import Path

from faults.conftest import Undisturbed
from support.relay_run import assert_unharmed, relay

SCRIPT, RANKS = "helpers_of_set_up.py", 2


def test_a_rank_is_replaced_whose_set_up_has_forked_from_a_server(undisturbed: Undisturbed, tmp_path: Path) -> None:
    fault = "kill:rank=1,step=8,phase=backward"
    run = relay(tmp_path, SCRIPT, "forkserver", ranks=RANKS, inject=[fault])
    assert_unharmed(run, undisturbed(SCRIPT, "forkserver", ranks=RANKS), RANKS, [fault], 1)
