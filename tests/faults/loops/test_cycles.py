"""`itertools.cycle`, over data loaders and anything else: a new process draws what the lost one would have, and so do survivors."""

from __future__ import annotations

from pathlib import Path

import pytest
from faults.conftest import Undisturbed
from support.cells import few
from support.relay_run import assert_unharmed, relay

SCRIPT, RANKS = "cycles.py", 2
FAULTS = ("kill:rank=0,step=6,phase=after-step", "kill:rank=1,step=11,phase=backward")
"""The short data set has three batches: both strike in later passes, the second one a process that took over or its peer."""


@pytest.mark.parametrize("shape", few(1, ["next", "zip", "bar", "held", "lists"]))
def test_ranks_are_replaced_in_later_passes(shape: str, undisturbed: Undisturbed, tmp_path: Path) -> None:
    run = relay(tmp_path, SCRIPT, shape, ranks=RANKS, spares=2, inject=FAULTS)
    assert_unharmed(run, undisturbed(SCRIPT, shape, ranks=RANKS), RANKS, list(FAULTS), 2)
