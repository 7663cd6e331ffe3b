"""A data set that training changes is, for a new process, as the lost rank had it."""

from __future__ import annotations

from pathlib import Path

import pytest
from faults.conftest import Undisturbed
from support.cells import few
from support.relay_run import assert_unharmed, relay

RANKS, SCRIPT = 2, "changing_data.py"
FAULTS = ("kill:rank=0,step=8,phase=backward", "kill:rank=1,step=13,phase=after-step")


@pytest.mark.slow
@pytest.mark.parametrize(
    "kind", few(3, ["workers", "variable", "processes", "curriculum", "strength", "within", "labels"])
)
def test_a_new_process_goes_on_with_the_data_as_training_has_changed_it(
    kind: str, undisturbed: Undisturbed, tmp_path: Path
) -> None:
    run = relay(tmp_path, SCRIPT, kind, ranks=RANKS, spares=2, inject=FAULTS)
    assert_unharmed(run, undisturbed(SCRIPT, kind, ranks=RANKS), RANKS, list(FAULTS), 2)
