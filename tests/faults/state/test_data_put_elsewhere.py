"""Training puts data sets and loaders elsewhere: a new process has each where the lost rank had it."""

from __future__ import annotations

from pathlib import Path

import pytest
from faults.conftest import Undisturbed
from support.cells import few
from support.relay_run import assert_unharmed, relay

SCRIPT, RANKS = "data_put_elsewhere.py", 2


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "faults"),
    few(
        1,
        [
            ("stages", ["kill:rank=0,step=7,phase=backward", "kill:rank=0,step=17,phase=data"]),
            ("pool", ["kill:rank=1,step=6,phase=data", "kill:rank=1,step=13,phase=backward"]),
            ("concat", ["kill:rank=0,step=6,phase=after-step", "kill:rank=0,step=15,phase=backward"]),
        ],
    ),
)
def test_a_rank_is_replaced(kind: str, faults: list[str], undisturbed: Undisturbed, tmp_path: Path) -> None:
    run = relay(tmp_path, SCRIPT, kind, ranks=RANKS, spares=2, inject=faults)
    assert_unharmed(run, undisturbed(SCRIPT, kind, ranks=RANKS), RANKS, faults, len(faults))
