"""Ranks that learn of a loss in a collective that the script calls in inference mode."""

from __future__ import annotations

from pathlib import Path

import pytest
from faults.conftest import Undisturbed
from support.relay_run import assert_unharmed, relay

SCRIPT, RANKS = "reduced_in_inference.py", 2


@pytest.mark.slow
def test_what_is_made_anew_there_can_be_written_to_behind_it(undisturbed: Undisturbed, tmp_path: Path) -> None:
    faults = [
        "kill:rank=0,step=6,phase=optimizer", "kill:rank=1,step=9,phase=backward", "kill:rank=1,step=13,phase=optimizer",
        "kill:rank=0,step=16,phase=forward",
    ]  # fmt: skip
    run = relay(tmp_path, SCRIPT, ranks=RANKS, spares=len(faults), inject=faults)
    assert_unharmed(run, undisturbed(SCRIPT, ranks=RANKS), RANKS, faults, len(faults))
