"""How far tensors are while they are handed over or saved."""

from __future__ import annotations

from pathlib import Path

from support.fake_job import FakeJob

from torchrelay.controller.execution.bytes_done import EVERY_S, progress
from torchrelay.protocol import events
from torchrelay.protocol import messages as msg
from torchrelay.protocol.words.phases import Phase

GIB = 1 << 30


def told(job: FakeJob) -> list[events.MigrationProgressed]:
    return job.told(events.MigrationProgressed)


def test_the_rate_is_that_since_the_phase_began_and_the_time_left_follows() -> None:
    both = [msg.BytesDone(1, GIB, 2 * GIB), msg.BytesDone(1, 3 * GIB, 4 * GIB)]
    made = progress("m1", Phase.CHECKPOINTING, both, 2.0)
    assert (made.done_bytes, made.total_bytes, made.bytes_per_s, made.left_s) == (4 * GIB, 6 * GIB, 2.0 * GIB, 1.0)
    assert progress("m1", Phase.CHECKPOINTING, [msg.BytesDone(1, 0, GIB)], 2.0).left_s == -1.0
    assert progress("m1", Phase.CHECKPOINTING, [msg.BytesDone(1, 3, 2)], 0.0).done_bytes == 2


def saving(folder: Path) -> FakeJob:
    """A job that saves as it was asked to; the rank that writes says nothing yet."""
    job = FakeJob(folder, spares=0)
    job.train()
    job.saves_for_long = {"n0.w0"}
    job.core.user_requests.save(msg.CheckpointRequest("before the maintenance"), job.now_s)
    job.tick()
    job.settle()
    assert job.core.driver.phase is Phase.CHECKPOINTING
    return job


def test_what_has_been_transferred_is_told_once_a_second_and_in_the_status_at_once(tmp_path: Path) -> None:
    job = saving(tmp_path)
    generation = job.core.driver.migration.state.generation  # type: ignore[union-attr]
    for tenth in range(1, 26):
        job.tick(0.1)
        job.say("n0.w0", msg.BytesDone(generation, tenth * GIB, 50 * GIB))
    assert [round(e.elapsed_s / EVERY_S) for e in told(job)] == [1, 2]
    (now,) = job.core.status(job.now_s).moving
    assert (now.phase, now.done_bytes, now.total_bytes) == ("checkpoint", 25 * GIB, 50 * GIB)
    job.say("n0.w0", msg.CheckpointSaved(generation, 50 * GIB))
    job.settle()
    assert job.core.status(job.now_s).moving == ()
    job.say("n0.w0", msg.BytesDone(generation, 1, 2))
    assert job.core.status(job.now_s).moving == ()


def test_what_is_said_of_an_older_generation_does_not_count(tmp_path: Path) -> None:
    job = saving(tmp_path)
    job.tick(2.0)
    job.say("n0.w0", msg.BytesDone(0, 1, 2))
    assert (told(job), job.core.status(job.now_s).moving) == ([], ())
