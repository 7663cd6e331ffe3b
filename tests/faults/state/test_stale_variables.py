"""Workers that a loader keeps have the script's variables as they were when they began, and new ones have the same."""

from __future__ import annotations

from pathlib import Path

import pytest
from faults.conftest import Undisturbed
from support.cells import few
from support.relay_run import assert_unharmed, relay

SCRIPT, RANKS = "stale_variable.py", 2


@pytest.mark.slow
@pytest.mark.parametrize("kind", few(1, ["last", "each"]))
def test_new_workers_have_a_variable_as_those_before_them_had_it(
    kind: str, undisturbed: Undisturbed, tmp_path: Path
) -> None:
    faults = ["kill:rank=1,step=10,phase=backward"]
    run = relay(tmp_path, SCRIPT, kind, ranks=RANKS, spares=1, inject=faults)
    assert_unharmed(run, undisturbed(SCRIPT, kind, ranks=RANKS), RANKS, faults, 1)
