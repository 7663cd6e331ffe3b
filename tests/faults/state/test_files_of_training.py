"""Files that training itself has opened go on in a new process, and so does a schedule that holds an optimizer's groups."""

from __future__ import annotations

from pathlib import Path

import pytest
from faults.conftest import Undisturbed
from support.relay_run import assert_unharmed, relay

SCRIPT, RANKS = "files_of_training.py", 2
FAULTS = ["kill:rank=0,step=9,phase=backward", "kill:rank=1,step=14,phase=forward"]


@pytest.mark.core
@pytest.mark.slow
def test_every_line_is_written_once(undisturbed: Undisturbed, tmp_path: Path) -> None:
    run = relay(tmp_path, SCRIPT, ranks=RANKS, spares=2, inject=FAULTS)
    assert_unharmed(run, undisturbed(SCRIPT, ranks=RANKS), RANKS, FAULTS, 2)
