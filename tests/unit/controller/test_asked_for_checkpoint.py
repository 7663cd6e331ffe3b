"""A checkpoint of a running job that somebody asks for: what is written, who is refused, and what comes after it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from support.fake_job import FakeJob

from torchrelay.controller.checkpoints.checkpoint import read_checkpoint
from torchrelay.protocol import events
from torchrelay.protocol import messages as msg
from torchrelay.protocol.words.phases import Phase

ASKED = msg.CheckpointRequest("before the maintenance", "alice")


def training(folder: Path, spares: int = 0, **more: Any) -> FakeJob:
    job = FakeJob(folder, spares=spares, **more)
    job.train()
    return job


def save(job: FakeJob) -> msg.MigrateReply:
    reply = job.core.user_requests.save(ASKED, job.now_s)
    job.tick()
    job.settle()
    return reply


def test_a_checkpoint_that_was_asked_for_is_whole_and_of_the_boundary_at_which_all_stood(tmp_path: Path) -> None:
    job = training(tmp_path)
    reply = save(job)
    assert reply.accepted
    (saved,) = job.told(events.CheckpointSaved)
    assert saved.directory == str(tmp_path / f"run-step{job.boundary}-asked")
    assert saved.resume_command == f"torchrelay run --resume {saved.directory} train.py"
    checkpoint = read_checkpoint(Path(saved.directory), 3)
    assert checkpoint.target == saved.boundary == job.boundary
    assert {r: (p.action, p.journal) for r, p in checkpoint.ranks.items()} == {
        r: ("enter", f"n0.w{r}@{job.boundary}".encode()) for r in range(3)
    }
    assert (checkpoint.tensors, checkpoint.tensors_of) == ({0: 4096}, {0: 0, 1: 0, 2: 0})
    (started,) = job.told(events.MigrationStarted)
    (finished,) = job.told(events.MigrationFinished)
    assert (started.kind, started.rank, started.by) == ("save", -1, "alice")
    assert started.reason == "before the maintenance"
    assert (finished.migration, finished.outcome, finished.ranks) == (reply.migration, "saved", ())


def test_training_goes_on_in_the_same_processes_and_the_next_loss_is_replaced(tmp_path: Path) -> None:
    job = training(tmp_path, spares=1)
    save(job)
    assert set(job.sent(msg.Abandon)) == {"n0.w0", "n0.w1", "n0.w2"}
    assert job.stop is None
    assert job.core.status(job.now_s).migrations_done == 0
    job.die("n0.w1")
    job.settle()
    assert job.core.job.holders[1] == "n0.s0"


def test_a_job_resumes_from_it(tmp_path: Path) -> None:
    first = training(tmp_path)
    save(first)
    (saved,) = first.told(events.CheckpointSaved)
    resumed = FakeJob(Path(saved.directory), spares=0, checkpoint=read_checkpoint(Path(saved.directory), 3))
    resumed.warm()
    resumed.settle()
    (finished,) = resumed.told(events.MigrationFinished)
    assert (finished.kind, finished.outcome) == ("resume", "committed")
    assert {p.target for p in resumed.sent(msg.Plan).values()} == {saved.boundary}


@pytest.mark.parametrize(
    ("config", "says"),
    [({"jit_barred": "no checkpoint can be saved: the job names no folder"}, "names no folder"), ({}, "not protected")],
    ids=["nothing may be saved", "unprotected"],
)
def test_a_checkpoint_that_cannot_be_made_is_refused_in_words(
    tmp_path: Path, config: dict[str, Any], says: str
) -> None:
    job = training(tmp_path, config=config)
    if not config:
        job.core.job.protection, job.core.job.protection_reason = "off", "rank 1 has no shim"
    reply = job.core.user_requests.save(ASKED, job.now_s)
    assert (reply.accepted, reply.again) == (False, False)
    assert says in reply.message


def test_a_second_one_is_told_to_wait_while_the_first_is_saved(tmp_path: Path) -> None:
    job = training(tmp_path)
    assert job.core.user_requests.save(ASKED, job.now_s).accepted
    reply = job.core.user_requests.save(ASKED, job.now_s)
    assert (reply.accepted, reply.again) == (False, True)
    assert reply.message == "m1 is under way (a checkpoint is saved, quiesce); ask again when it is over"


def test_where_nothing_can_be_written_the_job_goes_on_and_nothing_is_left(tmp_path: Path) -> None:
    job = training(tmp_path)
    job.full = [str(tmp_path)]
    save(job)
    (finished,) = job.told(events.MigrationFinished)
    assert (finished.outcome, job.stop) == ("abandoned", None)
    assert "is full" in finished.reason
    assert list(tmp_path.iterdir()) == []
    assert job.told(events.IncidentKept) == []


class NeverSaved(FakeJob):
    """Rank 2 writes, and dies before it has said so."""

    def _reports(self, worker: str, order: msg.ShimOrder) -> list[msg.ShimReport]:
        if isinstance(order, msg.SaveCheckpoint):
            Path(order.directory).mkdir(parents=True)
            if worker == "n0.w2":
                return []
        return super()._reports(worker, order)


def test_a_loss_meanwhile_is_replaced_and_leaves_no_half_of_a_checkpoint_behind(tmp_path: Path) -> None:
    job = NeverSaved(tmp_path, spares=1)
    job.train()
    save(job)
    assert job.core.driver.phase is Phase.CHECKPOINTING
    assert list(tmp_path.iterdir())
    job.die("n0.w2")
    job.settle()
    assert [f.outcome for f in job.told(events.MigrationFinished)] == ["committed"]
    assert job.core.job.holders[2] == "n0.s0"
    assert list(tmp_path.iterdir()) == []
