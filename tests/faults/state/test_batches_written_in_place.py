"""Steps that write into their batch are done again with the batch as it was."""

from __future__ import annotations

from pathlib import Path

import pytest
from faults.conftest import Undisturbed
from support.cells import only_in_long
from support.relay_run import assert_unharmed, relay

RANKS = 2


@pytest.mark.core
def test_ranks_are_lost_in_the_first_step_that_writes_into_its_batch_and_in_later_ones(
    undisturbed: Undisturbed, tmp_path: Path
) -> None:
    faults = [
        "kill:rank=1,step=1,phase=backward",
        "kill:rank=0,step=7,phase=backward",
        "kill:rank=1,step=11,phase=gate",
    ]
    run = relay(tmp_path, "in_place.py", ranks=RANKS, spares=3, inject=faults)
    assert_unharmed(run, undisturbed("in_place.py", ranks=RANKS), RANKS, faults, 3)
    notes = [note for report in run.named("rank_report") for note in report["notes"]]
    assert any("write into their batch in place" in note for note in notes), notes


@only_in_long
def test_a_process_that_took_over_a_rank_can_go_back_past_what_it_has_never_seen_written(
    undisturbed: Undisturbed, tmp_path: Path
) -> None:
    faults = ["kill:rank=0,step=3,phase=after-step", "kill:rank=1,step=5,phase=backward"]
    run = relay(tmp_path, "target_network.py", ranks=RANKS, spares=2, inject=faults)
    assert_unharmed(run, undisturbed("target_network.py", ranks=RANKS), RANKS, faults, 2)
