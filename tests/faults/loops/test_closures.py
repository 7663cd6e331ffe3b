"""Optimizers that call their closure several times a step: a rank is lost in the middle of one, and all do it again as a whole."""

from __future__ import annotations

from pathlib import Path

import pytest
from faults.conftest import Undisturbed
from support.cells import few
from support.relay_run import assert_unharmed, relay

SCRIPT, RANKS = "closures.py", 2


@pytest.mark.core
@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "fault"),
    few(
        1,
        [
            ("wolfe", "kill:rank=0,step=5,phase=gate"),
            ("lbfgs", "kill:rank=1,step=4,phase=optimizer"),
            ("phases", "kill:rank=0,step=11,phase=optimizer"),
            ("lbfgs", "kill:rank=0,step=1,phase=gate"),
            ("lbfgs", "kill:rank=1,step=6,phase=backward"),
            ("wolfe", "kill:rank=1,step=7,phase=backward"),
            ("lbfgs", "kill:rank=0,step=8,phase=after-step"),
            ("lbfgs", "stop:rank=0,step=9,phase=gate"),
        ],
    ),
)
def test_a_rank_is_replaced(kind: str, fault: str, undisturbed: Undisturbed, tmp_path: Path) -> None:
    run = relay(tmp_path, SCRIPT, kind, ranks=RANKS, inject=[fault])
    assert_unharmed(run, undisturbed(SCRIPT, kind, ranks=RANKS), RANKS, [fault], 1)
