"""One epoch makes the loader that later ones go on with: a new process makes it, too, whatever set-up has in its place."""

from __future__ import annotations

from pathlib import Path

import pytest
from faults.conftest import Undisturbed
from support.cells import few
from support.relay_run import assert_unharmed, relay

SCRIPT, RANKS = "loaders_of_an_epoch.py", 2


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "faults"),
    few(
        1,
        [
            ("loader", ["kill:rank=0,step=14,phase=backward", "kill:rank=0,step=19,phase=data"]),
            ("data", ["kill:rank=1,step=13,phase=data", "kill:rank=1,step=22,phase=backward"]),
            ("held", ["kill:rank=0,step=11,phase=after-step", "kill:rank=0,step=18,phase=backward"]),
            ("lazy", ["kill:rank=1,step=10,phase=backward", "kill:rank=1,step=17,phase=data"]),
            ("large", ["kill:rank=0,step=13,phase=data", "kill:rank=0,step=22,phase=after-step"]),
        ],
    ),
)
def test_a_rank_is_replaced(kind: str, faults: list[str], undisturbed: Undisturbed, tmp_path: Path) -> None:
    run = relay(tmp_path, SCRIPT, kind, ranks=RANKS, spares=2, inject=faults)
    assert_unharmed(run, undisturbed(SCRIPT, kind, ranks=RANKS), RANKS, faults, len(faults))


@pytest.mark.slow
def test_a_process_that_makes_another_content_is_refused(tmp_path: Path) -> None:
    """It draws it, and the lost rank had drawn it in an earlier epoch: all would go on with other numbers."""
    run = relay(tmp_path, SCRIPT, "drawn", ranks=RANKS, inject=["kill:rank=1,step=10,phase=backward"])
    assert run.status == 75, run.told()
    assert run.committed() == [], run.told()
    assert "aux.dataset: this process has made its own Scaled" in run.stderr, run.told()
    assert "its noise came out otherwise" in run.stderr, run.told()
