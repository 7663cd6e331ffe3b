"""Shards that one rank alone holds: it is lost without warning, and all go back to the copies that they keep."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest
from faults.conftest import Undisturbed
from faults.machines.test_lost_machine import Machines
from support.cells import few, only_in_long
from support.cli_harness import Cli, eventually
from support.machines import Fleet, descendants, worker_of
from support.relay_run import relay
from support.training import differences

SCRIPT, RANKS, EVERY = "sharded.py", 2, 3


@pytest.mark.slow
@pytest.mark.parametrize(
    ("faults", "redone"),
    few(
        1,
        [
            pytest.param(
                ["kill:rank=1,step=1,phase=backward", "kill:rank=0,step=8,phase=optimizer"],
                [{1}, {2, 3}],  # the survivor of the second may have begun the next step when it hears of the loss
                id="in the first step, and past the gate",
            ),
            pytest.param(["kill:rank=1,step=9,phase=backward"], [{3}], id="in backward"),
            pytest.param(
                ["kill:rank=1,step=5,phase=forward", "kill:rank=0,step=5,phase=backward"],
                [{2}, {2}],
                id="a second one before there are new copies",
            ),
        ],
    ),
)
def test_a_rank_whose_shards_nobody_else_has_is_lost_without_a_trace(
    faults: list[str], redone: list[set[int]], undisturbed: Undisturbed, tmp_path: Path
) -> None:
    run = relay(tmp_path, SCRIPT, ranks=RANKS, spares=len(faults), inject=faults, options=[f"--buddy-every={EVERY}"])
    assert run.status == 0, run.told()
    assert sorted(run.faults()) == sorted(faults), run.told()
    assert [m["kind"] for m in run.committed()] == ["rollback"] * len(faults), run.told()
    assert all(m["steps_redone"] in steps for m, steps in zip(run.committed(), redone, strict=True)), run.told()
    assert differences(undisturbed(SCRIPT, ranks=RANKS), run.out, RANKS) == [], run.told()


@pytest.mark.core
def test_all_ranks_are_lost_at_once_and_go_on_from_their_copies(undisturbed: Undisturbed, tmp_path: Path) -> None:
    held, holds = 9, tmp_path / "holds"
    lost: list[int] = []

    def lose_all(command: int) -> None:
        if lost or not all((holds / f"held-{held}-{rank}").exists() for rank in range(RANKS)):
            return
        workers = [f"n0.w{rank}" for rank in range(RANKS)]
        lost.extend(pid for pid in descendants(command) if worker_of(pid) in workers)
        for number in (signal.SIGSTOP, signal.SIGKILL):  # nobody lives to see that another one is gone
            for pid in lost:
                os.kill(pid, number)
        (holds / str(held)).touch()

    run = relay(
        tmp_path,
        SCRIPT,
        ranks=RANKS,
        spares=0,
        options=[f"--buddy-every={EVERY}"],
        environment={"HOLD_STEPS": str(held)},
        watch=lose_all,
    )
    assert len(lost) == RANKS
    assert run.status == 0, run.told()
    (migration,) = run.committed()
    assert (migration["kind"], migration["ranks"]) == ("rollback", list(range(RANKS))), run.told()
    assert migration["steps_redone"] in (EVERY, 2 * EVERY), run.told()
    assert differences(undisturbed(SCRIPT, ranks=RANKS), run.out, RANKS) == [], run.told()


@only_in_long
def test_a_copy_that_is_half_written_counts_for_nothing(undisturbed: Undisturbed, tmp_path: Path) -> None:
    fault = "kill:rank=1,step=7,phase=copy"  # of boundary 6; the one before is of boundary 3
    run = relay(tmp_path, SCRIPT, ranks=RANKS, inject=[fault], options=[f"--buddy-every={EVERY}"])
    assert (run.status, run.faults()) == (0, [fault]), run.told()
    (migration,) = run.committed()
    assert (migration["kind"], migration["steps_redone"]) == ("rollback", 4), run.told()
    assert any("their copies of step 3;" in e["text"] for e in run.named("decision")), run.told()
    assert differences(undisturbed(SCRIPT, ranks=RANKS), run.out, RANKS) == [], run.told()


def test_a_rank_that_is_lost_with_its_machine_goes_on_from_the_copy_of_its_buddy(
    undisturbed: Undisturbed, tmp_path: Path
) -> None:
    reference, fault = undisturbed(SCRIPT, ranks=RANKS), "node:rank=1,step=10,phase=backward"
    with Cli(tmp_path) as cli:
        options = (f"--inject={fault}", f"--buddy-every={EVERY}")
        job = Machines(cli, *options, spares=1, script=SCRIPT, local_ranks=1)
        said = job.end()
    assert [e["fault"] for e in job.events("fault_injected")] == [fault], said
    assert [(e["node"], e["ranks"]) for e in job.events("node_lost")] == [("n1", [1])], said
    (finished,) = job.events("migration_finished")
    assert (finished["kind"], finished["outcome"]) == ("rollback", "committed"), said
    assert finished["steps_redone"] <= 2 * EVERY + 1, said
    assert (job.first.returncode, job.second.returncode) == (0, 1), said
    assert differences(reference, job.out, RANKS) == [], said


@pytest.mark.slow
@pytest.mark.parametrize("gone", few(1, [1, 0]))
def test_where_an_agent_is_killed_and_nothing_takes_over_its_rank_starts_over_where_its_copy_lies(
    gone: int, undisturbed: Undisturbed, tmp_path: Path
) -> None:
    """Its ranks end with it. Neither a spare nor a respawn: all go back, instead of to the script's beginning."""
    reference, holds, there = undisturbed(SCRIPT, ranks=RANKS), tmp_path / "holds", 1 - gone
    holds.mkdir()
    with Cli(tmp_path) as cli:
        options = (f"--buddy-every={EVERY}", "--respawn-limit=0")
        fleet = Fleet(cli, *options, spares=(0, 0), script=SCRIPT, HOLD_STEPS="10", HOLD_FOLDER=str(holds))
        eventually("step 9", lambda: fleet.boundary(there) == 9)
        os.kill(agent_of(fleet.commands[gone].pid), signal.SIGKILL)
        (holds / "10").touch()
        said = fleet.end(*fleet.commands)
    assert fleet.commands[there].returncode == 0, said
    assert fleet.events(there, "job_restarted") == [], said
    (finished,) = fleet.events(there, "migration_finished")
    assert (finished["kind"], finished["outcome"]) == ("rollback", "committed"), said
    assert finished["steps_redone"] <= 2 * EVERY + 1, said
    assert differences(reference, fleet.out, RANKS) == [], said


def agent_of(command: int) -> int:
    return next(p for p in descendants(command) if b"torchrelay.agent" in Path(f"/proc/{p}/cmdline").read_bytes())


@only_in_long
def test_a_rank_that_is_lost_with_its_machine_is_given_its_copy_by_its_buddy_s_process(
    undisturbed: Undisturbed, tmp_path: Path
) -> None:
    """The spare is on a third machine, which has no copy of it."""
    reference, fault = undisturbed(SCRIPT, ranks=3), "node:rank=1,step=10,phase=backward"
    with Cli(tmp_path) as cli:
        options = (f"--inject={fault}", f"--buddy-every={EVERY}")
        job = Machines(cli, *options, spares=1, script=SCRIPT, local_ranks=1, count=3)
        said = job.end()
    assert [e["fault"] for e in job.events("fault_injected")] == [fault], said
    (finished,) = job.events("migration_finished")
    assert (finished["kind"], finished["outcome"]) == ("rollback", "committed"), said
    assert finished["spares"] == ["n0.r0", "n0.s0", "n2.r0"], said
    assert any("rank 2 gives that of rank 1" in e["text"] for e in job.events("decision")), said
    assert finished["transferred_bytes"] > 0, said
    assert differences(reference, job.out, 3) == [], said


@only_in_long
def test_without_a_spare_the_lost_rank_starts_over_where_it_was(undisturbed: Undisturbed, tmp_path: Path) -> None:
    fault = "kill:rank=1,step=9,phase=gate"
    run = relay(tmp_path, SCRIPT, ranks=RANKS, spares=0, inject=[fault], options=[f"--buddy-every={EVERY}"])
    assert (run.status, run.faults()) == (0, [fault]), run.told()
    (migration,) = run.committed()
    assert (migration["kind"], migration["spares"]) == ("rollback", ["n0.r0", "n0.r1"]), run.told()
    assert differences(undisturbed(SCRIPT, ranks=RANKS), run.out, RANKS) == [], run.told()


@only_in_long
@pytest.mark.parametrize("rank", few(1, [1, 0]))
def test_a_rank_is_lost_while_others_wait_for_what_its_optimizer_sends(
    rank: int, undisturbed: Undisturbed, tmp_path: Path
) -> None:
    fault = f"kill:rank={rank},step=6,phase=optimizer"
    run = relay(tmp_path, "zero.py", ranks=RANKS, inject=[fault], options=["--buddy-every=1"])
    assert (run.status, run.faults()) == (0, [fault]), run.told()
    (migration,) = run.committed()
    assert (migration["kind"], migration["steps_redone"]) == ("rollback", 1), run.told()
    assert differences(undisturbed("zero.py", ranks=RANKS), run.out, RANKS) == [], run.told()


@pytest.mark.core
def test_without_copies_the_loss_ends_the_job_and_says_why(tmp_path: Path) -> None:
    fault = "kill:rank=1,step=6,phase=backward"
    run = relay(tmp_path, SCRIPT, ranks=RANKS, inject=[fault], options=["--buddy-every=0"])
    assert run.status == 137, run.told()
    (finished,) = run.named("migration_finished")
    assert finished["outcome"] == "abandoned", run.told()
    assert "no rank that is left holds the same tensors as rank 1" in finished["reason"], run.told()


@only_in_long
def test_ranks_that_hold_the_same_stop_copying(undisturbed: Undisturbed, tmp_path: Path) -> None:
    fault = "kill:rank=1,step=30,phase=backward"
    run = relay(tmp_path, "ddp.py", ranks=2, inject=[fault], options=["--buddy-every=2"])
    assert run.status == 0, run.told()
    (migration,) = run.committed()
    assert (migration["kind"], migration["steps_redone"]) == ("unplanned", 1), run.told()
    coverage = run.named("coverage")[-1]["coverage"]
    assert coverage["copy_every"] == 0, run.told()
    assert differences(undisturbed("ddp.py", ranks=2), run.out, 2) == [], run.told()
