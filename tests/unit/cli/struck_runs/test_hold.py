from __future__ import annotations

from pathlib import Path

import pytest

from torchrelay.cli.struck_runs.event_file import EventFile
from torchrelay.cli.struck_runs.hold import HoldFile, HoldForSpare
from torchrelay.dashboard.event_writer import json_line
from torchrelay.protocol import events


class Job:
    def __init__(self, folder: Path) -> None:
        self.log = EventFile(folder / "events.jsonl")
        self.hold: HoldFile | HoldForSpare = HoldFile(folder / "hold", self.log)

    def says(self, occurrence: events.Occurrence) -> None:
        with open(self.log.path, "a") as file:
            file.write(json_line(events.to_job_event(occurrence, 1.0)) + "\n")
        self.hold.watch()

    @property
    def waits(self) -> bool:
        return self.hold.path.exists()


def slow_of(job: Job) -> Path:
    assert isinstance(job.hold, HoldFile)
    return job.hold.slow


@pytest.fixture
def job(tmp_path: Path) -> Job:
    return Job(tmp_path)


FIRED = events.FaultFired("planned:rank=0,step=3,phase=forward", 0, 2)


def test_training_waits_from_the_fault_until_it_is_to_stop(job: Job) -> None:
    job.hold.watch()
    assert not job.waits
    job.says(FIRED)
    assert job.waits
    job.says(events.PhaseChanged("m1", "prepare", 0.1))
    assert job.waits
    job.says(events.PhaseChanged("m1", "quiesce", 0.1))
    assert not job.waits


def test_steps_take_long_from_the_start_until_the_migration_is_over(job: Job) -> None:
    assert slow_of(job).exists()
    job.says(FIRED)
    job.says(events.PhaseChanged("m1", "quiesce", 0.1))
    assert slow_of(job).exists()
    job.says(events.MigrationFinished("m1", "planned", "committed", 0, "", (0,), (), 0, {}, 0.0, 0, 1, ""))
    assert not slow_of(job).exists()


def test_training_does_not_wait_for_a_migration_that_was_given_up(job: Job) -> None:
    job.says(FIRED)
    job.says(events.MigrationFinished("m1", "planned", "abandoned", 0, "", (0,), (), 0, {}, 0.0, 0, 1, "no spare"))
    assert not job.waits
    assert job.log.summary.migrations[0].outcome_reason == "no spare"


def test_half_a_line_is_read_when_it_is_whole(job: Job) -> None:
    line = json_line(events.to_job_event(FIRED, 1.0)) + "\n"
    job.log.path.write_text(line[:20])
    assert job.log.read() == []
    job.log.path.write_text(line)
    assert job.log.read() == [FIRED]
    assert job.log.read() == []


DONE = events.MigrationFinished("m1", "unplanned", "committed", 1, "", (1,), (), 1, {}, 0.0, 0, 1, "")
MADE = events.SpareMade("n0.s1", "n0", "n0.w1")
NONE_READY, READY = events.SparesChanged(1, 0, 1, ""), events.SparesChanged(1, 1, 0, "")


class Refilled(Job):
    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.hold = HoldForSpare(folder / "hold-for-spare", self.log, 1)


@pytest.fixture
def refilled(tmp_path: Path) -> Refilled:
    return Refilled(tmp_path)


def test_training_waits_after_a_migration_until_the_new_spare_is_ready(refilled: Refilled) -> None:
    refilled.says(FIRED)
    assert not refilled.waits, "the joiner would wait too"
    refilled.says(DONE)
    assert refilled.waits
    for said in (NONE_READY, MADE, NONE_READY):
        refilled.says(said)
        assert refilled.waits
    refilled.says(READY)
    assert not refilled.waits


def test_a_spare_that_was_ready_before_the_migration_is_not_waited_with(refilled: Refilled) -> None:
    refilled.says(DONE)
    refilled.says(READY)
    assert refilled.waits


@pytest.mark.parametrize("said", [FIRED, events.MigrationStarted("m2", "unplanned", 0, "", 2)])
def test_a_second_loss_ends_the_wait(refilled: Refilled, said: events.Occurrence) -> None:
    refilled.says(DONE)
    refilled.says(said)
    assert not refilled.waits


def test_behind_the_last_loss_training_goes_on_without_a_new_spare(refilled: Refilled) -> None:
    for said in (DONE, MADE, READY, DONE):
        refilled.says(said)
    assert not refilled.waits
