"""A job whose processes others start: it falls when nothing replaces a rank, and begins again in other processes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from support.fake_job import FakeJob

from torchrelay.controller.checkpoints.checkpoint import MANIFEST, parse_checkpoint
from torchrelay.controller.restart.job_restart import RestartPlan
from torchrelay.protocol import events
from torchrelay.protocol import messages as msg
from torchrelay.protocol.names import ENV_CHECKPOINT

LAUNCH = {rank: {"RANK": str(rank), "WORLD_SIZE": "2", "MASTER_ADDR": "gone"} for rank in range(2)}
IN_PODS: dict[str, Any] = {"adopted": True, "restarts": True}


def fallen_job(folder: Path, **config: Any) -> FakeJob:
    job = FakeJob(folder, 2, 0, nnodes=2, config=IN_PODS | config)
    job.train()
    job.die("n1.w0")
    job.settle()
    return job


def begun_again(folder: Path, files: dict[str, bytes] | None = None, **restart: Any) -> FakeJob:
    job = FakeJob(folder, 2, 0, nnodes=2, config=IN_PODS, restart=RestartPlan(LAUNCH, **restart), files=files)
    job.settle()
    return job


def test_a_survivor_writes_what_the_controller_cannot(tmp_path: Path) -> None:
    job = fallen_job(tmp_path / "jit")
    fallen = job.core.fallen
    assert fallen is not None
    assert (fallen.rank, fallen.step, fallen.directory) == (1, 5, str(tmp_path / "jit/run-step5"))
    assert "no spare is left" in fallen.no_spare
    assert job.stop is None
    assert not (tmp_path / "jit").exists()
    assert list(job.files)[-1] == MANIFEST
    saved = parse_checkpoint("", job.files.__getitem__, 2)
    assert {r: p.journal for r, p in saved.ranks.items()} == {0: b"n0.w0@5", 1: b"n1.w0@5"}


def test_where_the_writer_dies_another_survivor_writes_all_of_it(tmp_path: Path) -> None:
    job = FakeJob(tmp_path, 3, 0, nnodes=3, config=IN_PODS)
    job.train()
    job.die("n1.w0")
    while not job.sent(msg.KeepFile):
        node, message = job.due.popleft()
        job.give(message, node)
    (writer,) = job.sent(msg.KeepFile)
    job.due.clear()
    job.files.clear()
    job.die(writer)
    job.settle()
    assert len(job.sent(msg.KeepFile)) == 2
    assert job.core.fallen is not None
    assert job.core.fallen.directory
    assert parse_checkpoint("", job.files.__getitem__, 3).target == 5


def test_without_a_folder_the_reason_is_told(tmp_path: Path) -> None:
    job = fallen_job(tmp_path, jit_barred="the job names no folder")
    assert job.core.fallen is not None
    assert (job.core.fallen.directory, job.core.fallen.refused) == ("", "the job names no folder")
    assert job.sent(msg.SaveCheckpoint) == {}


def test_a_step_that_is_worn_out_is_not_saved_again(tmp_path: Path) -> None:
    job = fallen_job(tmp_path, worn_out=(5,))
    assert job.core.fallen is not None
    assert "begun again at step 5 too often" in job.core.fallen.refused


def test_a_spare_that_is_to_come_is_waited_for_and_not_for_ever(tmp_path: Path) -> None:
    from torchrelay.protocol.words.phases import Deadlines

    job = FakeJob(tmp_path, 2, 0, nnodes=2, config=IN_PODS | {"deadlines": Deadlines(spare_s=5.0)})
    job.core.job.spares_wanted = 1
    job.train()
    job.die("n1.w0")
    job.settle()
    job.tick(4.5)
    assert job.core.fallen is None
    job.tick(1.0)
    job.settle()
    assert job.core.fallen is not None
    assert "within 5 s" in job.core.fallen.no_spare


def test_a_container_that_is_started_again_is_the_spare_that_is_waited_for(tmp_path: Path) -> None:
    job = FakeJob(tmp_path, 2, 0, nnodes=2, config=IN_PODS | {"respawn_limit": 1})
    job.core.job.starting_again = {"n0", "n1"}
    job.train()
    assert job.core.job.spares_to_come(0) == 0
    job.die("n1.w0")
    job.settle()
    assert job.core.fallen is None
    job.spares.append("n1.w1")
    job.give(msg.WorkerStarted("n1.w1", 1, 9, LAUNCH[1]), "n1")
    assert job.sent(msg.Begin)["n1.w1"].spare
    job.say("n1.w1", msg.Warm("2.13"))
    job.settle()
    (finished,) = job.told(events.MigrationFinished)
    assert (finished.outcome, finished.spares) == ("committed", ("n1.w1",))


def test_nothing_moves_any_more_in_a_job_that_has_fallen(tmp_path: Path) -> None:
    job = fallen_job(tmp_path)
    job.orders.clear()
    job.die("n0.w0")
    job.tick(60.0)
    assert not job.core.user_requests.migrate(msg.MigrateRequest(0, "why not"), job.now_s).accepted
    assert job.orders == []


def test_all_are_told_to_begin_again_and_agents_stay(tmp_path: Path) -> None:
    job = fallen_job(tmp_path)
    job.core.hand_over("from step 5")
    job._collect()
    assert [(n, type(o)) for n, o in job.sent_to[-2:]] == [("n0", msg.RestartWorkers), ("n1", msg.RestartWorkers)]
    assert job.stop is None


def test_the_job_goes_on_from_the_just_in_time_checkpoint_once_all_are_there(tmp_path: Path) -> None:
    files = fallen_job(tmp_path).files
    job = begun_again(tmp_path, files, directory="/c/jit", step=5)
    assert {w: b.spare for w, b in job.sent(msg.Begin).items()} == {"n0.w0": True, "n1.w0": True}
    assert job.sent(msg.Assign) == {}
    job.warm()
    job.settle()
    (finished,) = job.told(events.MigrationFinished)
    assert (finished.kind, finished.outcome, finished.ranks) == ("resume", "committed", (0, 1))
    assert {p.directory for p in job.sent(msg.Plan).values()} == {"/c/jit/rank-0-tensors"}
    assert {a.env["RANK"] for a in job.sent(msg.Assign).values()} == {"0", "1"}
    job.tick()
    assert job.core.job.protection == "on"


def test_a_checkpoint_that_is_damaged_is_not_begun_from(tmp_path: Path) -> None:
    files = fallen_job(tmp_path).files
    files["rank-1.journal"] = b"x"
    job = begun_again(tmp_path, files, directory="/c/jit", step=5)
    job.warm()
    job.settle()
    assert job.core.fallen is not None
    assert "rank-1.journal is damaged" in job.core.fallen.refused
    assert job.sent(msg.Assign) == {}


def test_scripts_run_from_their_beginning_once_the_broken_is_out_of_the_way(tmp_path: Path) -> None:
    job = begun_again(tmp_path, checkpoint="/c/20", aside=("/c/30",), step=20)
    job.say("n0.w0", msg.Warm("2.13"))
    assert job.sent(msg.SetAside) == {}
    job.say("n1.w0", msg.Warm("2.13"))
    assert [s.paths for s in job.sent(msg.SetAside).values()] == [("/c/30",)]
    assert all(b.spare for b in job.sent(msg.Begin).values())
    job.settle()
    begun = {b.env["RANK"]: b for b in job.sent(msg.Begin).values()}
    assert sorted(begun) == ["0", "1"]
    assert not any(b.spare for b in begun.values())
    assert {b.env["MASTER_ADDR"] for b in begun.values()} == {"10.0.0.1"}
    assert {b.env[ENV_CHECKPOINT] for b in begun.values()} == {"/c/20"}
    assert job.core.job.holders == {0: "n0.w0", 1: "n1.w0"}
    for rank, worker in job.core.job.holders.items():
        job.say(worker, msg.Armed(rank, 2, "gloo", "2.13"))
    assert job.core.job.protection == "on"


def test_what_cannot_be_renamed_stops_the_job_from_taking_it(tmp_path: Path) -> None:
    job = begun_again(tmp_path, checkpoint="/c/20", aside=("/c/30",), step=20)
    job.mute = {"n0.w0", "n1.w0"}
    job.warm()
    (renamer,) = job.sent(msg.SetAside)
    job.say(renamer, msg.AsideSet("/c/30: Read-only file system"))
    assert job.core.fallen is not None
    assert "Read-only" in job.core.fallen.refused
    assert all(b.spare for b in job.sent(msg.Begin).values())


@pytest.mark.parametrize("when", ["while it gathers", "after that"])
def test_a_process_of_the_time_before_is_ended(tmp_path: Path, when: str) -> None:
    job = begun_again(tmp_path, fallen_job(tmp_path).files, directory="/c/jit", step=5)
    if when == "after that":
        job.warm()
        job.settle()
    old = msg.WorkerInfo("n2.w0", 1, 9, LAUNCH[1], generation=3, protected=True)
    job.core.attach(msg.AgentHello("n2", -1, "10.0.0.3", (old,)), job.now_s)
    job._collect()
    assert job.sent_to[-1][0] == "n2"
    assert isinstance(job.sent_to[-1][1], msg.RestartWorkers)
    assert "n2.w0" not in job.core.job.workers


def test_a_reader_that_goes_away_is_replaced(tmp_path: Path) -> None:
    job = FakeJob(tmp_path, 2, 0, nnodes=2, config=IN_PODS, restart=RestartPlan(LAUNCH, directory="/c/jit"))
    asked = [n for n, o in job.sent_to if isinstance(o, msg.FetchCheckpoint)]
    assert asked == ["n0"]
    job.core.detach("n0", job.now_s)
    job.attach("n1")
    assert [n for n, o in job.sent_to if isinstance(o, msg.FetchCheckpoint)] == ["n0", "n1"]


def test_a_process_that_dies_on_its_way_in_from_a_checkpoint_ends_the_migration_and_not_the_controller(
    tmp_path: Path,
) -> None:
    job = begun_again(tmp_path, fallen_job(tmp_path).files, directory="/c/jit", step=5)
    job.mute = {"n0.w0", "n1.w0"}
    job.warm()
    job.die("n0.w0", signal=11)
    job.settle()
    (finished,) = job.told(events.MigrationFinished)
    assert (finished.kind, finished.outcome) == ("resume", "abandoned")
