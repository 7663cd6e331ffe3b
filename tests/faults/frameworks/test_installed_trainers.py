"""A training loop in an installed package that nobody here knows by name."""

from __future__ import annotations

from pathlib import Path

import pytest
from faults.conftest import Undisturbed
from support.cells import few
from support.relay_run import assert_unharmed, relay

SCRIPT, RANKS = "installed_trainer.py", 2


@pytest.mark.slow
@pytest.mark.parametrize(
    "faults",
    few(
        1,
        [
            ["kill:rank=0,step=4,phase=backward", "kill:rank=1,step=13,phase=after-step"],
            ["kill:rank=1,step=7,phase=forward", "kill:rank=0,step=12,phase=gate"],
        ],
    ),
)
def test_a_rank_is_replaced(faults: list[str], undisturbed: Undisturbed, tmp_path: Path) -> None:
    run = relay(tmp_path, SCRIPT, ranks=RANKS, spares=2, inject=faults)
    assert_unharmed(run, undisturbed(SCRIPT, ranks=RANKS), RANKS, faults, 2)
