"""Several machines, and the one with the controller is gone: another one leads, and the ranks live on there."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest
from faults.conftest import Undisturbed
from support.cells import few, only_in_long
from support.cli_harness import Cli, eventually
from support.machines import Fleet, descendants, lose, worker_of
from support.training import differences

SCRIPT = "ddp.py"


@only_in_long
def test_without_any_spare_the_rank_of_the_machine_that_led_goes_on_in_a_process_that_is_started_elsewhere(
    undisturbed: Undisturbed, tmp_path: Path
) -> None:
    reference, holds = undisturbed(SCRIPT, ranks=2), tmp_path / "holds"
    holds.mkdir()
    with Cli(tmp_path) as cli:
        fleet = Fleet(cli, spares=(0, 0), script=SCRIPT, HOLD_STEPS="20", HOLD_FOLDER=str(holds))
        eventually("step 20", lambda: fleet.boundary(1) == 19)
        fleet.take_port(1)
        lose(fleet.commands[0])
        (holds / "20").touch()
        said = fleet.end(fleet.commands[1])
    assert fleet.commands[1].returncode == 0, said
    assert fleet.moved(1) == [0], said
    assert [(e["node"], e["ranks"]) for e in fleet.events(1, "node_lost")] == [("n0", [0])], said
    assert [(e["rank"], e["node"]) for e in fleet.events(1, "process_respawned")] == [(0, "n1")], said
    assert fleet.events(1, "job_restarted") == [], said
    assert fleet.events(1, "job_finished")[0]["exit_code"] == 0, said
    assert differences(reference, fleet.out, 2) == [], said


HELD = ("20", "40")


@pytest.mark.core
@pytest.mark.slow
@pytest.mark.parametrize("gone", few(1, [0, 1]))
def test_a_machine_that_comes_back_brings_spares_without_a_restart(
    gone: int, undisturbed: Undisturbed, tmp_path: Path
) -> None:
    reference, holds = undisturbed(SCRIPT, ranks=2), tmp_path / "holds"
    holds.mkdir()
    there = 1 - gone
    spares = [0, 0]
    spares[there] = 1
    with Cli(tmp_path) as cli:
        environment = {"HOLD_STEPS": ",".join(HELD), "HOLD_FOLDER": str(holds)}
        fleet = Fleet(cli, "--respawn-limit=0", spares=spares, script=SCRIPT, **environment)
        eventually("step 20", lambda: fleet.boundary(there) == 19)
        lose(fleet.commands[gone])
        (holds / "20").touch()
        eventually("its rank lives on", lambda: fleet.moved(there) == [gone])
        eventually("step 40", lambda: fleet.boundary(there) == 39)
        fleet.take_port(gone)
        back = fleet.start(gone, "-again")
        eventually("a spare", lambda: fleet.events(there, "progress")[-1]["spares"] == 1)
        victim = next(w for w in descendants(fleet.commands[there].pid) if worker_of(w) == f"n{there}.s0")
        os.kill(victim, signal.SIGKILL)
        (holds / "40").touch()
        said = fleet.end(fleet.commands[there], back)
    assert (fleet.commands[there].returncode, back.returncode) == (0, 0), said
    assert fleet.moved(there) == [gone, gone], said
    second = fleet.events(there, "migration_finished")[-1]
    assert second["spare"].startswith(f"n{gone}-2."), said
    assert [e["restart"] for e in fleet.events(there, "job_restarted")] == [], said
    assert differences(reference, fleet.out, 2) == [], said


@only_in_long
@pytest.mark.timeout(400)
@pytest.mark.parametrize("gone", few(1, [1, 0]))
def test_a_rank_moves_to_a_machine_that_is_back_so_that_the_loss_of_the_other_one_does_not_end_the_job(
    gone: int, undisturbed: Undisturbed, tmp_path: Path
) -> None:
    reference, hurry, there = undisturbed(SCRIPT, "25", ranks=2), tmp_path / "hurry", 1 - gone
    with Cli(tmp_path) as cli:
        fleet = Fleet(cli, spares=(1, 1), script=SCRIPT, arguments=["25"], STEP_S="0.5", HURRY=str(hurry))
        eventually("protected", lambda: level(fleet, there) == "protected")
        lose(fleet.commands[gone])
        eventually("its rank lives on", lambda: fleet.moved(there) == [gone])
        together = f"all ranks are on n{there}, so no rank would be left"
        eventually("the level says so", lambda: together in fleet.events(there, "protection")[-1]["reason"])
        assert level(fleet, there) == "partly"
        back = fleet.start(gone, "-again")
        eventually("it moves back", lambda: fleet.events(there, "rank_spread"))
        eventually("protected again", lambda: level(fleet, there) == "protected")
        status = cli.run("status").stdout
        hurry.touch()
        said = fleet.end(fleet.commands[there], back)
    assert (fleet.commands[there].returncode, back.returncode) == (0, 0), said
    (spread,) = fleet.events(there, "rank_spread")
    assert (spread["rank"], spread["node"], spread["moves"]) == (gone, f"n{gone}-2", 1), said
    planned = [e for e in fleet.events(there, "migration_started") if e["kind"] == "planned"]
    why = f"to another machine, since the loss of n{there} would end the job: all ranks are there"
    assert [(e["rank"], e["reason"]) for e in planned] == [(gone, why)], said
    assert "1 rank moved to another machine" in status
    assert fleet.events(there, "job_restarted") == [], said
    assert differences(reference, fleet.out, 2) == [], said


def level(fleet: Fleet, number: int) -> str:
    """What the command of machine `number` was told last."""
    return next((str(e["level"]) for e in reversed(fleet.events(number, "protection"))), "")
