from __future__ import annotations

from pathlib import Path

import pytest
from support.fake_job import FakeJob

from torchrelay.controller.picture.worker import Worker
from torchrelay.protocol import events
from torchrelay.protocol.words.causes import MigrationCause


@pytest.fixture
def job(tmp_path: Path) -> FakeJob:
    job = FakeJob(tmp_path, spares=2)
    job.train()
    return job


def lose(job: FakeJob, worker: Worker, cause: MigrationCause = MigrationCause.PROCESS) -> None:
    job.core.driver.lose(worker, f"{worker.worker} is gone", job.now_s, cause=cause)
    job._collect()


def test_the_loss_of_a_rank_s_holder_begins_a_migration_with_its_reason_and_cause(job: FakeJob) -> None:
    lose(job, job.core.job.holder(1), MigrationCause.NODE)
    (started,) = job.told(events.MigrationStarted)
    assert (started.rank, started.reason, started.cause) == (1, "n0.w1 is gone", MigrationCause.NODE.value)


def test_a_second_loss_belongs_to_the_migration_under_way(job: FakeJob) -> None:
    lose(job, job.core.job.holder(1))
    lose(job, job.core.job.holder(2))
    assert job.core.driver.migration is not None
    assert set(job.core.driver.migration.state.lost) == {1, 2}
    assert job.core.driver.count == 1


def test_the_loss_of_a_process_that_holds_no_rank_any_more_begins_nothing(job: FakeJob) -> None:
    former = job.core.job.holder(1)
    lose(job, former)
    job.settle()
    assert job.core.job.holder(1) is not former
    lose(job, former)
    assert job.core.driver.migration is None
    assert job.core.driver.count == 1
