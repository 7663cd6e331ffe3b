from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import pytest

from torchrelay.cli.drill import runs
from torchrelay.cli.drill.runs import STANDS_S, Reference, StandingJob
from torchrelay.cli.struck_runs.event_file import EventFile
from torchrelay.protocol import events

OFF = events.Protection("unprotected", "the process group uses nccl")
ON = events.Protection("protected", "any rank")
STRUCK = events.FaultFired("stop:rank=1,step=5,phase=forward", 1, 5)
MOVED = events.MigrationStarted("m1", "unplanned", 1, "rank 1 hangs", 1)


def told(log: EventFile, *occurrences: events.Occurrence) -> None:
    with log.path.open("a") as file:
        for occurrence in occurrences:
            name = events.NAMES[type(occurrence)]
            file.write(json.dumps({"time_s": 1.0, "name": name, **dataclasses.asdict(occurrence)}) + "\n")
    log.read()


@pytest.fixture
def log(tmp_path: Path) -> EventFile:
    return EventFile(tmp_path / "events.jsonl")


@pytest.mark.parametrize(
    ("occurrences", "is_lost"),
    [
        ((OFF, STRUCK), True),
        ((ON, STRUCK, OFF), False),
        ((OFF,), False),
        ((OFF, STRUCK, MOVED), False),
    ],
)
def test_a_job_without_protection_that_stands_after_a_fault_is_lost(
    log: EventFile, occurrences: tuple[events.Occurrence, ...], is_lost: bool
) -> None:
    standing = StandingJob(log)
    told(log, *occurrences)
    assert not standing.is_lost(100.0)
    assert standing.is_lost(100.0 + STANDS_S) is is_lost


def test_a_job_that_makes_steps_does_not_stand(log: EventFile) -> None:
    standing = StandingJob(log)
    told(log, OFF, STRUCK)
    assert not standing.is_lost(0.0)
    told(log, events.ProgressMade(7, 1.0, 2, 0))
    assert not standing.is_lost(STANDS_S)
    assert standing.is_lost(2 * STANDS_S)


def test_the_run_of_a_job_that_stands_is_ended(log: EventFile, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runs, "STANDS_S", 0.0)
    monkeypatch.setattr(runs, "LOOK_S", 0.0)
    watch = runs._Watch(Reference((), ()), tmp_path, None, log)
    watch()
    told(log, OFF, STRUCK)
    with pytest.raises(runs._Stands):
        watch()
