"""Large tables that a step has made are read by a new process before their content has come."""

from __future__ import annotations

from pathlib import Path

from faults.conftest import Undisturbed
from support.relay_run import assert_unharmed, relay

RANKS, SCRIPT = 2, "kept_tables.py"


def test_a_new_process_looks_up_a_table_whose_content_is_still_to_come(
    undisturbed: Undisturbed, tmp_path: Path
) -> None:
    fault = "kill:rank=0,step=6,phase=after-step"
    run = relay(tmp_path, SCRIPT, ranks=RANKS, inject=[fault])
    assert_unharmed(run, undisturbed(SCRIPT, ranks=RANKS), RANKS, [fault], 1)
