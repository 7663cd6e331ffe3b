"""Buckets of gradients are rebuilt after each migration, in the order of that step: the next new process has the same ones."""

from __future__ import annotations

from pathlib import Path

import pytest
from faults.conftest import Undisturbed
from support.cells import few
from support.relay_run import assert_unharmed, relay

SCRIPT = "ready_order.py"
LATER = ("kill:rank=1,step=7,phase=backward", "kill:rank=1,step=10,phase=forward")
"""Parts take turns of four steps: those of the seventh are in another order than those of the first."""
AT_ONCE = ("kill:rank=1,step=7,phase=backward", "kill:rank=2,step=8,phase=backward")
"""The second before anybody can tell what was rebuilt behind the first."""


@pytest.mark.slow
@pytest.mark.parametrize(("faults", "ranks"), few(1, [(LATER, 2), (AT_ONCE, 3)]))
def test_a_second_loss_mixes_up_no_gradients_where_their_order_changes(
    faults: tuple[str, ...], ranks: int, undisturbed: Undisturbed, tmp_path: Path
) -> None:
    run = relay(tmp_path, SCRIPT, ranks=ranks, spares=2, inject=faults)
    assert_unharmed(run, undisturbed(SCRIPT, ranks=ranks), ranks, list(faults), 2)
