"""The controller is killed in the midst of a migration, or while nothing happens: another one goes on, or begins anew."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest
from faults.conftest import Undisturbed
from support.cells import few
from support.footprint import parts_of
from support.relay_run import assert_unharmed, read_events, relay
from support.training import differences

RANKS, SCRIPT = 2, "module_level.py"
LOST = "kill:rank=1,step=9,phase=backward"


@pytest.mark.core
@pytest.mark.slow
@pytest.mark.parametrize(("rank", "phase"), few(1, [(1, "prepare"), (0, "rebuild"), (1, "transfer"), (0, "verify")]))
def test_a_migration_whose_controller_dies_is_done_by_the_next_one(
    rank: int, phase: str, undisturbed: Undisturbed, tmp_path: Path
) -> None:
    faults = [LOST, f"controller:rank={rank},step=9,phase={phase}"]
    run = relay(tmp_path, SCRIPT, ranks=RANKS, spares=2, inject=faults)
    assert_unharmed(run, undisturbed(SCRIPT, ranks=RANKS), RANKS, faults, 1)
    assert [e["outcome"] for e in run.named("taken_over")] != []
    assert "the controller was ended by SIGKILL: training goes on, and another controller is started" in run.told()


def test_the_controller_that_takes_over_replaces_ranks_that_are_lost_later(
    undisturbed: Undisturbed, tmp_path: Path
) -> None:
    faults = [
        "controller:rank=0,step=4,phase=forward",
        "kill:rank=1,step=12,phase=gate",
        "kill:rank=1,step=16,phase=forward",
    ]
    run = relay(tmp_path, SCRIPT, ranks=RANKS, spares=2, inject=faults)
    assert_unharmed(run, undisturbed(SCRIPT, ranks=RANKS), RANKS, faults, 2)


def test_ranks_whose_controller_dies_while_they_enter_from_a_checkpoint_enter_again(
    undisturbed: Undisturbed, tmp_path: Path
) -> None:
    killed: list[int] = []

    def watch(command: int) -> None:
        begun = [e for e in read_events(tmp_path / "events.jsonl") if e["name"] == "migration_started"]
        if not killed and any(e["kind"] == "resume" for e in begun):
            killed.append(parts_of(command)["controller"].pid)
            os.kill(killed[0], signal.SIGKILL)

    options = ["--max-restarts=3"]
    run = relay(tmp_path, SCRIPT, ranks=RANKS, spares=0, inject=[LOST], options=options, watch=watch)
    assert (run.status, len(killed)) == (0, 1), run.told()
    first, second = run.named("job_restarted")
    assert (first["rung"], second["rung"]) == ("jit-checkpoint", "earlier-checkpoint"), run.told()
    assert first["directory"] == second["directory"], "it was not tried again"
    assert (first["steps"], second["steps"]) == (0, 0), run.told()
    assert differences(undisturbed(SCRIPT, ranks=RANKS), run.out, RANKS) == [], run.told()
