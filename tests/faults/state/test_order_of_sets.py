"""A set yields and pops its elements in the order that it had: that goes by all that was ever added to it and taken away."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.relay_run import assert_unharmed, plain, relay

SCRIPT, RANKS = "drawing_sets.py", 2
FAULTS = ["kill:rank=1,step=8,phase=backward", "kill:rank=0,step=11,phase=after-step"]
HASHES = {"PYTHONHASHSEED": "5"}
"""Words have other hashes in each process with torchrun, so there is no one run to compare with."""


@pytest.mark.slow
def test_a_rank_is_replaced(tmp_path: Path) -> None:
    reference = plain(tmp_path / "plain", SCRIPT, ranks=RANKS, environment=HASHES)
    run = relay(tmp_path / "relay", SCRIPT, ranks=RANKS, spares=2, inject=FAULTS, environment=HASHES)
    assert_unharmed(run, reference, RANKS, FAULTS, 2)
