"""Several machines, and nobody can take over: all of them start anew, at the same step, also once a lost one has come back."""

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
FAULT = "kill:rank=1,step=20,phase=backward"


@only_in_long
def test_all_machines_enter_at_the_same_step_where_no_process_can_take_over(
    undisturbed: Undisturbed, tmp_path: Path
) -> None:
    reference = undisturbed(SCRIPT, ranks=2)
    with Cli(tmp_path) as cli:
        fleet = Fleet(cli, "--respawn-limit=0", f"--inject={FAULT}", spares=(0, 0), script=SCRIPT)
        said = fleet.end(*fleet.commands)
    assert [command.returncode for command in fleet.commands] == [0, 0], said
    assert [e["fault"] for e in fleet.events(0, "fault_injected")] == [FAULT], said
    for number in (0, 1):
        (restart,) = fleet.events(number, "job_restarted")
        assert (restart["rung"], restart["boundary"]) == ("jit-checkpoint", 19), said
        assert len(fleet.events(number, "restart_done")) == 1, said
    assert differences(reference, fleet.out, 2) == [], said
    assert not (tmp_path / "jit").exists(), sorted((tmp_path / "jit").iterdir())


@pytest.mark.core
@pytest.mark.parametrize("script", few(1, ["averaged_by_hand.py", SCRIPT]))
def test_a_job_that_has_lost_the_machine_that_led_goes_on_at_the_same_step_once_it_is_back(
    script: str, undisturbed: Undisturbed, tmp_path: Path
) -> None:
    """The next controller has not heard what the lost rank held: where no wrapper says that it is equal, its copies say it."""
    gone, there = 0, 1
    reference, holds = undisturbed(script, ranks=2), tmp_path / "holds"
    holds.mkdir()
    with Cli(tmp_path) as cli:
        environment = {"HOLD_STEPS": "20", "HOLD_FOLDER": str(holds)}
        fleet = Fleet(cli, "--respawn-limit=0", spares=(0, 0), script=script, **environment)
        eventually("step 20", lambda: fleet.boundary(there) == 19)
        lose(fleet.commands[gone])
        (holds / "20").touch()
        eventually("it is started anew", lambda: fleet.events(there, "job_restarted"))
        back = fleet.start(gone, "-again")
        said = fleet.end(fleet.commands[there], back)
    assert (fleet.commands[there].returncode, back.returncode) == (0, 0), said
    (restart,) = fleet.events(there, "job_restarted")
    assert (restart["rung"], restart["boundary"]) == ("jit-checkpoint", 19), said
    assert differences(reference, fleet.out, 2) == [], said


@only_in_long
def test_without_a_machine_that_does_not_come_back_the_ranks_enter_on_the_other_one(
    undisturbed: Undisturbed, tmp_path: Path
) -> None:
    """No sooner than what is cut off has ended: after the lease and 10 s."""
    reference, holds = undisturbed(SCRIPT, ranks=2), tmp_path / "holds"
    holds.mkdir()
    with Cli(tmp_path) as cli:
        environment = {"HOLD_STEPS": "20", "HOLD_FOLDER": str(holds)}
        options = ("--respawn-limit=0", "--lease=20s", "--machine-wait=30s")
        fleet = Fleet(cli, *options, spares=(0, 0), script=SCRIPT, **environment)
        eventually("step 20", lambda: fleet.boundary(1) == 19)
        lose(fleet.commands[0])
        (holds / "20").touch()
        said = fleet.end(fleet.commands[1])
    assert fleet.commands[1].returncode == 0, said
    (restart,) = fleet.events(1, "job_restarted")
    assert (restart["rung"], restart["boundary"]) == ("jit-checkpoint", 19), said
    assert "machine 0 did not come back within 30 s (--machine-wait): the job goes on without" in said
    assert differences(reference, fleet.out, 2) == [], said


@only_in_long
@pytest.mark.timeout(400)
def test_a_machine_that_comes_back_later_than_it_was_waited_for_has_one_of_the_ranks_again(
    undisturbed: Undisturbed, tmp_path: Path
) -> None:
    reference, holds, hurry = undisturbed(SCRIPT, "25", ranks=2), tmp_path / "holds", tmp_path / "hurry"
    holds.mkdir()
    with Cli(tmp_path) as cli:
        environment = {"HOLD_STEPS": "20", "HOLD_FOLDER": str(holds), "STEP_S": "0.5", "HURRY": str(hurry)}
        options = ("--respawn-limit=0", "--lease=20s", "--machine-wait=30s")
        fleet = Fleet(cli, *options, spares=(0, 0), script=SCRIPT, arguments=["25"], **environment)
        eventually("step 20", lambda: fleet.boundary(1) == 19)
        lose(fleet.commands[0])
        (holds / "20").touch()
        eventually("the job goes on without", lambda: fleet.events(1, "restart_done"))
        back = fleet.start(0, "-again")
        eventually("a rank is there again", lambda: fleet.events(1, "rank_spread"))
        hurry.touch()
        said = fleet.end(fleet.commands[1], back)
    assert (fleet.commands[1].returncode, back.returncode) == (0, 0), said
    (spread,) = fleet.events(1, "rank_spread")
    assert (spread["rank"], spread["node"].partition("-")[0]) == (0, "n0"), said
    assert [e["rung"] for e in fleet.events(1, "job_restarted")] == ["jit-checkpoint"], said
    assert differences(reference, fleet.out, 2) == [], said


@only_in_long
@pytest.mark.timeout(400)
def test_a_machine_that_is_lost_for_good_with_all_ranks_has_the_script_begin_with_all_of_them_on_the_other_one(
    undisturbed: Undisturbed, tmp_path: Path
) -> None:
    reference, holds = undisturbed(SCRIPT, ranks=2), tmp_path / "holds"
    holds.mkdir()
    with Cli(tmp_path) as cli:
        environment = {"HOLD_STEPS": "20,30", "HOLD_FOLDER": str(holds)}
        options = ("--respawn-limit=0", "--lease=20s", "--machine-wait=31s")
        fleet = Fleet(cli, *options, spares=(0, 1), script=SCRIPT, **environment)
        eventually("step 20", lambda: fleet.boundary(0) == 19)
        (holder,) = (pid for pid in descendants(fleet.commands[0].pid) if worker_of(pid) == "n0.w0")
        os.kill(holder, signal.SIGKILL)
        (holds / "20").touch()
        eventually("rank 0 is on the other machine", lambda: fleet.moved(0) == [0])
        lose(fleet.commands[1])
        (holds / "30").touch()
        eventually("it is started anew", lambda: fleet.events(0, "job_restarted"))
        waits = "the job is started anew, and waits for machine 1, for "
        eventually("status says so", lambda: waits in " ".join(cli.run("status").stdout.split()))
        said = fleet.end(fleet.commands[0])
    assert fleet.commands[0].returncode == 0, said
    (restart,) = fleet.events(0, "job_restarted")
    assert restart["rung"] == "script", said
    assert f"{waits}up to 31 s (--machine-wait); then the job goes on without" in said
    assert "machine 1 did not come back within 31 s (--machine-wait): the job goes on without" in said
    assert differences(reference, fleet.out, 2) == [], said


@only_in_long
def test_a_machine_that_is_lost_with_all_ranks_was_not_promised_and_all_begin_again_once_it_is_back(
    undisturbed: Undisturbed, tmp_path: Path
) -> None:
    reference, holds = undisturbed(SCRIPT, ranks=2), tmp_path / "holds"
    holds.mkdir()
    with Cli(tmp_path) as cli:
        environment = {"HOLD_STEPS": "20,30", "HOLD_FOLDER": str(holds)}
        fleet = Fleet(cli, "--respawn-limit=0", "--lease=20s", spares=(0, 1), script=SCRIPT, **environment)
        eventually("step 20", lambda: fleet.boundary(0) == 19)
        (holder,) = (pid for pid in descendants(fleet.commands[0].pid) if worker_of(pid) == "n0.w0")
        os.kill(holder, signal.SIGKILL)
        (holds / "20").touch()
        eventually("rank 0 is on the other machine", lambda: fleet.moved(0) == [0])
        together = "all ranks are on n1, so no rank would be left"
        eventually("the level says so", lambda: together in fleet.events(0, "protection")[-1]["reason"])
        assert fleet.events(0, "protection")[-1]["level"] == "partly"
        lose(fleet.commands[1])
        (holds / "30").touch()
        eventually("it is started anew", lambda: fleet.events(0, "job_restarted"))
        back = fleet.start(1, "-again")
        said = fleet.end(fleet.commands[0], back)
    assert (fleet.commands[0].returncode, back.returncode) == (0, 0), said
    (restart,) = fleet.events(0, "job_restarted")
    assert restart["rung"] == "script", said
    assert differences(reference, fleet.out, 2) == [], said


@only_in_long
def test_the_machine_that_led_and_had_all_ranks_joins_the_one_that_leads_now_while_that_waits_for_its_lease(
    undisturbed: Undisturbed, tmp_path: Path
) -> None:
    """It asks the controller where to join. That must not take from it what half of two machines lead by."""
    reference, holds = undisturbed(SCRIPT, ranks=2), tmp_path / "holds"
    holds.mkdir()
    with Cli(tmp_path) as cli:
        environment = {"HOLD_STEPS": "20,30", "HOLD_FOLDER": str(holds)}
        fleet = Fleet(cli, "--respawn-limit=0", "--lease=20s", spares=(1, 0), script=SCRIPT, **environment)
        eventually("step 20", lambda: fleet.boundary(0) == 19)
        (holder,) = (pid for pid in descendants(fleet.commands[1].pid) if worker_of(pid) == "n1.w0")
        os.kill(holder, signal.SIGKILL)
        (holds / "20").touch()
        eventually("rank 1 is on the machine that leads", lambda: fleet.moved(0) == [1])
        lose(fleet.commands[0])
        (holds / "30").touch()
        leads = "the controller of n1 leads the job"
        eventually("the other one leads", lambda: any(leads in e["text"] for e in fleet.events(1, "log")))
        back = fleet.start(0, "-again")
        said = fleet.end(fleet.commands[1], back)
    assert (fleet.commands[1].returncode, back.returncode) == (0, 0), said
    assert [e["rung"] for e in fleet.events(1, "job_restarted")] == ["script"], said
    assert differences(reference, fleet.out, 2) == [], said
