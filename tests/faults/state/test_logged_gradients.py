"""Gradients that the script reads long after their update, and then drops."""

from __future__ import annotations

from pathlib import Path

import pytest
from faults.conftest import Undisturbed
from support.cells import few
from support.relay_run import assert_unharmed, relay

SCRIPT, RANKS = "logged_gradients.py", 2


@pytest.mark.slow
@pytest.mark.parametrize(
    "faults",
    few(
        1,
        [
            ["kill:rank=1,step=9,phase=backward", "kill:rank=0,step=15,phase=forward"],
            ["kill:rank=0,step=9,phase=after-step", "kill:rank=0,step=15,phase=optimizer"],
        ],
    ),
)
def test_the_script_reads_them_as_the_lost_rank_would_have(
    faults: list[str], undisturbed: Undisturbed, tmp_path: Path
) -> None:
    run = relay(tmp_path, SCRIPT, ranks=RANKS, spares=len(faults), inject=faults)
    assert_unharmed(run, undisturbed(SCRIPT, ranks=RANKS), RANKS, faults, len(faults))
