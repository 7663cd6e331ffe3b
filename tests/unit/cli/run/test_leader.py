from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest

from torchrelay.cli.command_line.checked import check
from torchrelay.cli.command_line.given import GivenOptions
from torchrelay.cli.command_line.options import RunOptions
from torchrelay.cli.display.summary import UNDER_WAY, MigrationSummary, RunSummary, fold
from torchrelay.cli.machine import LocalMachine
from torchrelay.cli.run.leader import cannot_take_over, first_of, stands, successor, why_over
from torchrelay.protocol import events
from torchrelay.protocol.messages import LeadReply, Member
from torchrelay.protocol.options.members import member_of
from torchrelay.protocol.words.phases import ABANDONED, ANEW, COMMITTED, PLANNED, RESUME, UNPLANNED

MOVED = MigrationSummary("m1", UNPLANNED, (1,), outcome=COMMITTED, spares=("n0.s0",))


def summary_of(*migrations: MigrationSummary) -> RunSummary:
    return RunSummary(migrations=migrations)


def test_who_has_each_rank_follows_from_the_migrations() -> None:
    first = ("n0.w0", "n0.w1")
    assert summary_of().holders(first) == first
    assert summary_of(MOVED).holders(first) == ("n0.w0", "n0.s0")
    given_up = dataclasses.replace(MOVED, migration="m2", ranks=(0,), outcome=ABANDONED, spares=("n0.s1",))
    again = dataclasses.replace(MOVED, migration="m3", spares=("n0.s2",))
    assert summary_of(MOVED, given_up, again).holders(first) == ("n0.w0", "n0.s2")


@pytest.mark.parametrize(
    ("outcome", "told"), [(COMMITTED, COMMITTED), (ABANDONED, ABANDONED), (ANEW, ABANDONED), ("", ABANDONED)]
)
def test_what_was_under_way_ends_when_another_controller_takes_over(outcome: str, told: str) -> None:
    under_way = MigrationSummary("m2", UNPLANNED, (0,))
    after = fold(summary_of(MOVED, under_way), events.TakenOver(outcome, "why"), 1.0)
    assert after.migrations[0] == MOVED
    assert (after.migrations[1].outcome, after.migrations[1].outcome_reason) == (told, "why")


@pytest.mark.parametrize(
    ("kind", "phase", "outcome", "waits"),
    [
        (UNPLANNED, "prepare", UNDER_WAY, True),
        (UNPLANNED, "rebuild", COMMITTED, False),
        (PLANNED, "prepare", UNDER_WAY, False),
        (PLANNED, "transfer", UNDER_WAY, True),
    ],
)
def test_ranks_wait_for_a_controller_in_the_midst_of_a_migration(
    kind: str, phase: str, outcome: str, waits: bool
) -> None:
    assert stands(summary_of(MigrationSummary("m1", kind, (1,), phase=phase, outcome=outcome))) is waits


def options(**changes: Any) -> RunOptions:
    given = dataclasses.replace(GivenOptions(__file__, nproc_per_node="2"), **changes)
    return check(given, LocalMachine(), {"TORCHRELAY_SECRET": "0123456789abcdef"})


def test_the_next_controller_is_told_where_to_listen_and_what_has_been() -> None:
    assert successor(options(), summary_of(MOVED), 4711, LeadReply(0), 0) == {
        "listen_port": 4711,
        "takes_over": True,
        "holders": ["n0.w0", "n0.s0"],
        "migrations_begun": 1,
        "respawned": [],
        "imports_differ": False,
        "resume_dir": "",
    }
    two = options(nnodes="2", master_addr="node0", controller_port=4711)
    members = (
        Member("n0", 0, "node0:29476"),
        Member("n1", 1, "node1:29476", "aa", "torchrelay run --resume {directory} a"),
    )
    several = successor(two, summary_of(), 4711, LeadReply(2, "job", "n0", members, shared=True), 3)
    assert several["holders"] == ["n0.w0", "n0.w1", "n1.w0", "n1.w1"]
    assert (several["epoch"], several["follows"], several["job_name"], several["shared"]) == (3, 2, "job", True)
    assert [member_of(line) for line in several["members"]] == list(members)
    anew = first_of(two, LeadReply(2, "job", "n0", members))
    assert ([member_of(line) for line in anew["members_before"]], anew["job_name"]) == (list(members), "job")
    told = successor(two, summary_of(), 4711, LeadReply(2, "job", holders=("n0.s0", "n1.w1"), migrations_begun=4), 3)
    assert (told["holders"], told["migrations_begun"]) == (["n0.s0", "n1.w1"], 4)
    started = dataclasses.replace(summary_of(), respawned_s=((1, 1700000000.25),))
    assert successor(two, started, 4711, LeadReply(2, "job"), 3)["respawned"] == ["1 1700000000.250"]
    differ = fold(summary_of(), events.FilesDiffer(("n0", "n1"), "config.py"), 1.0)
    assert successor(two, differ, 4711, LeadReply(2, "job"), 3)["imports_differ"] is True


def test_nobody_takes_over_where_ranks_are_still_to_enter_from_a_checkpoint(tmp_path: Path) -> None:
    assert cannot_take_over(options(), summary_of()) == ""
    resumed = options(resume=tmp_path)
    assert cannot_take_over(resumed, summary_of()) == "not all ranks have entered from the checkpoint"
    assert cannot_take_over(resumed, summary_of(MigrationSummary("m1", RESUME, outcome=COMMITTED))) == ""
    assert cannot_take_over(dataclasses.replace(options(), check_steps=3), summary_of()) == "it is a check"


def test_a_job_without_a_controller_is_over_where_ranks_are_to_enter_or_stand_in_a_migration(tmp_path: Path) -> None:
    assert why_over(options(), summary_of()) == ""
    assert "before all ranks had entered" in why_over(options(resume=tmp_path), summary_of())
    entering = MigrationSummary("m1", RESUME, phase="prepare", outcome=UNDER_WAY)
    assert "before all ranks had entered" in why_over(options(resume=tmp_path), summary_of(entering))
    entered = MigrationSummary("m1", RESUME, outcome=COMMITTED)
    assert why_over(options(resume=tmp_path), summary_of(entered)) == ""
    moving = MigrationSummary("m2", UNPLANNED, (1,), phase="prepare", outcome=UNDER_WAY)
    assert "in the midst of a migration" in why_over(options(resume=tmp_path), summary_of(entered, moving))


def test_nobody_takes_over_while_scripts_wait_for_a_machine() -> None:
    anew = dataclasses.replace(options(nnodes="2", master_addr="node0"), restarts_done=1)
    restarted = fold(summary_of(), events.JobRestarted(1, "script", "", -1, 3, "lost", ()), 1.0)
    assert cannot_take_over(anew, restarted) == "the scripts have not begun"
    begun = fold(restarted, events.JobStarted("ab", 4, 0, ("n0", "n1")), 2.0)
    assert cannot_take_over(anew, begun) == ""
    again = fold(begun, events.JobRestarted(2, "script", "", -1, 3, "lost", ()), 3.0)
    assert cannot_take_over(anew, again) == "the scripts have not begun"
    joins = dataclasses.replace(anew, joins=True)
    assert cannot_take_over(joins, again) == ""
