"""A data set that cannot be opened while it is open is opened anew in each epoch, as under torchrun."""

from __future__ import annotations

from pathlib import Path

import pytest
from faults.conftest import Undisturbed
from support.cells import few
from support.relay_run import assert_unharmed, relay

SCRIPT, RANKS = "data_opened_anew.py", 2


@pytest.mark.core
@pytest.mark.slow
@pytest.mark.parametrize("kind", few(1, ["read", "fold", "local", "held", "update"]))
def test_training_goes_on_and_a_rank_is_replaced(kind: str, undisturbed: Undisturbed, tmp_path: Path) -> None:
    faults = [] if kind == "update" else ["kill:rank=1,step=12,phase=backward", "kill:rank=0,step=19,phase=optimizer"]
    run = relay(tmp_path, SCRIPT, kind, ranks=RANKS, spares=2, inject=faults)
    assert_unharmed(run, undisturbed(SCRIPT, kind, ranks=RANKS), RANKS, faults, len(faults))
