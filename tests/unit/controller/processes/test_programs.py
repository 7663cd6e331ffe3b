"""Machines are compared when their agents come, and a checkpoint names what goes on from it on each."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest
from support.fake_job import FakeJob

from torchrelay.controller.processes.programs import Programs
from torchrelay.protocol import events
from torchrelay.protocol import messages as msg
from torchrelay.protocol.messages import Program

ONE = Program("/src/train.py", "aa", {"model.py": "1"}, "3.11.7", "2.13.0", (), "torchrelay run --resume {directory} a")
OTHER = dataclasses.replace(ONE, resume_command="torchrelay run --resume {directory} --node-rank 1 a")


def programs_of(job: FakeJob) -> Programs:
    return Programs(job.core.outbox, job.core.job)


@pytest.mark.parametrize("order", [("n0", "n1"), ("n1", "n0")])
def test_the_second_machine_is_compared_with_the_first_whoever_comes_first(
    tmp_path: Path, order: tuple[str, ...]
) -> None:
    programs = programs_of(FakeJob(tmp_path))
    paths = {"n0": ONE, "n1": dataclasses.replace(OTHER, script="/code/train.py")}
    first, second = (programs.attached(node, paths[node]) for node in order)
    assert first == ""
    assert "n0 runs /src/train.py, n1 runs /code/train.py" in second


def test_an_agent_that_comes_again_is_no_news(tmp_path: Path) -> None:
    programs = programs_of(FakeJob(tmp_path))
    again = [("n0", ONE), ("n1", OTHER), ("n0", dataclasses.replace(ONE, torch="9"))]
    assert [programs.attached(node, program) for node, program in again] == ["", "", ""]


@pytest.mark.parametrize("began", [False, True])
def test_a_machine_that_was_told_otherwise_ends_a_job_that_has_not_begun_and_itself_alone_after_that(
    tmp_path: Path, began: bool
) -> None:
    job = FakeJob(tmp_path)
    job.core._parts.programs.attached("n0", ONE)
    if began:
        job.train()
    other = dataclasses.replace(ONE, torch="9")
    job.core._parts.start.has_begun = began
    job.core.attach(msg.AgentHello("n7", 7, "host7", (), program=other), job.now_s)
    job.core.receive("n7", msg.RoomLeft(msg.Room("/dev/shm/x", 0)), job.now_s)
    sent, _ = job.core.take()
    stops = {node: order for node, order in sent if isinstance(order, msg.StopJob)}
    assert (job.core.ended is None, "n7" in job.core.job.nodes) == (began, not began)
    assert set(stops) == ({"n7"} if began else {"n0", "n7"})
    assert (stops["n7"].exit_code, "n7 has 9" in stops["n7"].reason) == (2, True)


def test_what_may_go_well_is_told(tmp_path: Path) -> None:
    job = FakeJob(tmp_path)
    programs = programs_of(job)
    programs.attached("n0", ONE)
    programs.attached("n1", dataclasses.replace(OTHER, sources={"model.py": "2"}))
    _, told = job.core.take()
    assert any("beside the script model.py is not the same on n0 and n1" in event.fields_json for event in told)


def importing(digest: str) -> Program:
    return dataclasses.replace(ONE, sources={"model.py": digest}, imported=("model.py",))


def test_a_machine_that_comes_back_with_other_files_is_compared_again(tmp_path: Path) -> None:
    job = FakeJob(tmp_path)
    programs = programs_of(job)
    programs.attached("n0", importing("1"))
    programs.attached("n1", importing("1"))
    assert not job.core.job.imports_differ
    programs.attached("n1", importing("2"))
    assert job.core.job.imports_differ


def test_one_machine_of_each_kind_is_compared_with_a_new_one(tmp_path: Path) -> None:
    """Of the first nothing is known."""
    job = FakeJob(tmp_path)
    programs = programs_of(job)
    programs.attached("n0", dataclasses.replace(ONE, sources={}, imported=()))
    programs.attached("n1", importing("1"))
    programs.attached("n2", importing("2"))
    assert job.core.job.imports_differ


def test_every_machine_has_its_command(tmp_path: Path) -> None:
    programs = programs_of(FakeJob(tmp_path))
    programs.attached("n0", ONE)
    assert programs.resume_commands("/jit") == {}
    programs.attached("n1", OTHER)
    assert programs.resume_commands("/jit") == {
        "n0": "torchrelay run --resume /jit a",
        "n1": "torchrelay run --resume /jit --node-rank 1 a",
    }


def test_a_machine_that_is_lost_before_it_comes_to_a_new_controller_has_its_command_and_once_back_only_that(
    tmp_path: Path,
) -> None:
    job = FakeJob(tmp_path)
    programs = programs_of(job)
    programs.recall([msg.Member("n0", 0, "", "", "lost {directory}"), msg.Member("n1", 1, "", "", "old {directory}")])
    programs.attached("n1", OTHER)
    assert programs.resume_commands("/jit") == {"n0": "lost /jit", "n1": "torchrelay run --resume /jit --node-rank 1 a"}
    job.core.job.attach(msg.AgentHello("n0-2", 0, "h", ()), job.now_s)
    programs.attached("n0-2", ONE)
    assert set(programs.resume_commands("/jit")) == {"n0-2", "n1"}


def test_a_job_that_ends_with_75_tells_all_of_them(tmp_path: Path) -> None:
    job = FakeJob(tmp_path, world_size=4, spares=0, nnodes=2)
    for node, program in (("n0", ONE), ("n1", OTHER)):
        job.core._parts.programs.attached(node, program)
    job.train()
    job.die("n0.w1")
    job.settle()
    (saved,) = job.told(events.CheckpointSaved)
    assert set(saved.resume_commands) == {"n0", "n1"}
    reasons = {order.reason for order in job.orders if isinstance(order, msg.StopJob)}
    assert len(reasons) == 1
    assert f"go on with, on n0: torchrelay run --resume {saved.directory} a" in reasons.pop()
    assert f"on n1: torchrelay run --resume {saved.directory} --node-rank 1 a" in job.told(events.JobFinished)[0].reason


def test_a_machine_that_may_come_is_compared_with_all_that_are_there_and_changes_nothing(tmp_path: Path) -> None:
    programs = programs_of(FakeJob(tmp_path))
    assert programs.compare(ONE) == msg.MachinesCompared()
    for node, program in (("n0", ONE), ("n1", OTHER)):
        programs.attached(node, program)
    assert programs.compare(OTHER) == msg.MachinesCompared(("n0", "n1"))
    found = programs.compare(dataclasses.replace(ONE, torch="9", sources={"model.py": "2"}))
    assert [text.partition(":")[0] for text in found.refused] == [
        "n0 has torch 2.13.0, this machine has 9",
        "n1 has torch 2.13.0, this machine has 9",
    ]
    assert "model.py is not the same on n0 and this machine" in found.told[0]
    assert programs.compare(OTHER).nodes == ("n0", "n1")


def test_room_that_is_left_is_part_of_the_level(tmp_path: Path) -> None:
    job = FakeJob(tmp_path, spares=1)
    job.train()
    for worker in ("n0.w0", "n0.w1", "n0.w2"):
        job.say(worker, msg.Report("train.py", 30, 400, 900, 4, boundary=5, settled=True))
    assert "no room" not in job.core.status(job.now_s).protection_reason
    job.core.receive("n0", msg.RoomLeft(msg.Room("/dev/shm/x", 0)), job.now_s)
    assert "no room for its journals" in job.core.status(job.now_s).protection_reason
    job.core.receive("n0", msg.RoomLeft(msg.Room("/dev/shm/x", 1 << 30)), job.now_s)
    assert "no room" not in job.core.status(job.now_s).protection_reason
