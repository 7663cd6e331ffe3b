"""Buckets of gradients are rebuilt after each migration, in the order of that step: the next new process has the same ones."""

from __future__ import annotations

from pathlib import Path

from faults.conftest import Undisturbed
from support.relay_run import assert_unharmed, relay

SCRIPT, RANKS = "ready_order.py", 2
FAULTS = ("kill:rank=1,step=7,phase=backward", "kill:rank=1,step=10,phase=forward")
"""Parts take turns of four steps: those of the seventh are in another order than those of the first."""


def test_a_second_loss_mixes_up_no_gradients_where_their_order_changes(
    undisturbed: Undisturbed, tmp_path: Path
) -> None:
    run = relay(tmp_path, SCRIPT, ranks=RANKS, spares=2, inject=FAULTS)
    assert_unharmed(run, undisturbed(SCRIPT, ranks=RANKS), RANKS, list(FAULTS), 2)
