"""Machines whose files differ on purpose: the job begins, and no rank goes on with another machine's files."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest
from support.fake_job import FakeJob

from torchrelay.protocol import events
from torchrelay.protocol.messages import LeadReply, LeadRequest, Program, WorkerInfo
from torchrelay.protocol.options.members import member_line

SAME = Program(
    "/w/train.py", "aa", {"train.py": "1", "config.py": "2"}, "3.11.7", "2.13.0", imported=("config.py", "train.py")
)
OWN = dataclasses.replace(SAME, sources={**SAME.sources, "config.py": "3"})
BOTH = [pytest.param(OWN, id="config.py of its own"), pytest.param(SAME, id="the same files")]


def job_of(folder: Path, second: Program, spares: int = 2, **config: Any) -> FakeJob:
    """Two ranks each on n0, which has the spares, and on n1, which runs `second`."""
    programs = {"n0": SAME, "n1": second}
    return FakeJob(folder, 4, spares, nnodes=2, programs=programs, config=config)


def test_the_job_begins_and_one_line_says_which_files_and_what_that_means(tmp_path: Path) -> None:
    programs = {"n0": SAME, "n1": OWN, "n2": dataclasses.replace(SAME, sources={**SAME.sources, "config.py": "4"})}
    job = FakeJob(tmp_path, 3, 1, nnodes=3, programs=programs)
    job.train()
    assert job.stop is None
    (told,) = job.told(events.FilesDiffer)
    assert told.nodes == ("n0", "n1")
    assert "config.py is not the same on n0 and n1: a lost rank is taken over only where" in told.reason
    assert "\n" not in told.reason


@pytest.mark.parametrize("second", BOTH)
def test_a_spare_of_the_same_files_takes_over_and_no_other_one(tmp_path: Path, second: Program) -> None:
    job = job_of(tmp_path, second)
    job.train()
    job.die("n1.w0")
    job.settle()
    job.die("n0.w0")
    job.settle()
    outcomes = [(f.outcome, f.rank) for f in job.told(events.MigrationFinished)]
    if second is SAME:
        assert outcomes == [("committed", 2), ("committed", 0)]
        assert {job.core.job.holder(2).worker, job.core.job.holder(0).worker} == {"n0.s0", "n0.s1"}
    else:
        assert [outcome for outcome, _ in outcomes] == ["checkpoint"]
        assert (
            "no spare is left for rank 2 where the script imports the same files" in job.told(events.JobFell)[0].reason
        )


def test_a_rank_whose_machine_has_no_spare_begins_again_in_its_place(tmp_path: Path) -> None:
    job = job_of(tmp_path, OWN, respawn_limit=3)
    job.train()
    for lost, rank in (("n1.w0", 2), ("n0.w0", 0)):
        job.die(lost)
        job.settle()
        assert job.core.job.holder(rank).node == lost[:2]
    assert [(e.rank, e.node) for e in job.told(events.ProcessRespawned)] == [(2, "n1")]
    assert job.core.job.holder(0).worker == "n0.s0"


@pytest.mark.parametrize("second", BOTH)
def test_the_level_says_whether_the_loss_of_a_machine_is_covered(tmp_path: Path, second: Program) -> None:
    job = job_of(tmp_path, second, respawn_limit=3)
    job.train()
    short = job.core._parts.judge.known().short_of_spares
    if second is SAME:
        assert short == ""
    else:
        assert short == (
            "spares and free places elsewhere could take over 0 of 2 ranks of n0; "
            "what the script imports is not the same on all"
        )


def test_a_spare_that_suits_some_ranks_alone_is_none_for_the_level(tmp_path: Path) -> None:
    job = job_of(tmp_path, OWN)
    job.train()
    assert job.core._parts.judge.known().spares_ready == 0
    assert job.core._parts.planned_moves._no_spare(2) == (
        "no spare is on a machine where the script imports the same files as rank 2"
    )
    assert job.core._parts.planned_moves._no_spare(1) == ""


@pytest.mark.parametrize("second", BOTH)
def test_no_process_is_started_for_a_rank_where_its_files_are_not(tmp_path: Path, second: Program) -> None:
    job = job_of(tmp_path, second, spares=0, respawn_limit=3)
    job.train()
    job.core.job.nodes["n1"].lost = "it is gone"
    where = job.core.driver.spares.respawns.place(2)
    assert where.node == ("n0" if second is SAME else "")
    assert ("files that the script imports are others there" in where.reason) is (second is OWN)


def test_a_controller_that_takes_over_knows_the_files_of_a_machine_that_it_never_hears(tmp_path: Path) -> None:
    """n0 is lost with the controller: its rank goes on on n2, which has the same files, and not on n1."""
    programs = {"n0": SAME, "n1": OWN, "n2": SAME}
    before = FakeJob(tmp_path, 3, nnodes=3, programs=programs, config={"epoch": 3, "job_name": "job"})
    before.train()
    known = before.core.lead(LeadRequest(1, "n1", "job", 3), before.now_s)
    config = successor(known, epoch=7)
    job = FakeJob(tmp_path, 3, 0, nnodes=3, programs=programs, missing=("n0",), config=config)
    job.core.job.add("n0", WorkerInfo("n0.w0", 0, 0), 0, job.now_s)
    assert [job.core.job.may_go_on(0, node) for node in ("n1", "n2")] == [False, True]
    assert job.core.job.alike("n0") == {"n2"}
    again = job.core.lead(LeadRequest(1, "n1", "job", 7), job.now_s)
    assert {m.node: m.imports for m in again.members} == {m.node: m.imports for m in known.members}, "for the next one"


def successor(known: LeadReply, epoch: int) -> dict[str, Any]:
    """As its command configures a controller that takes over."""
    told = {"epoch": epoch, "follows": known.epoch, "job_name": known.job, "takes_over": True, "imports_differ": True}
    return told | {"members": tuple(map(member_line, known.members)), "holders": known.holders}


def test_who_knew_of_it_before_tells_the_next_controller_which_does_not_know_the_files_of_who_is_missing(
    tmp_path: Path,
) -> None:
    job = job_of(tmp_path, OWN)
    job.core.job.nodes.pop("n1")
    job.core.job.imports.pop("n1")
    job.core.job.holders.clear()
    assert not job.core.job.may_go_on(2, "n0")
    assert job.core.job.may_go_on(0, "n0")
