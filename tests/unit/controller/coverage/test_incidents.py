"""Incidents are written where they can be, a bounded number of them, and never in the way of the job's end."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from support.fake_job import FakeJob

from torchrelay.controller.coverage.incidents import KEPT, RECORD
from torchrelay.protocol import events
from torchrelay.protocol import messages as msg

SETTLED = msg.Report("train.py", 30, 400, 900, 4, (), (), (), 5, True)


def broken_promise(folder: Path, incidents: Path | str) -> FakeJob:
    """The spare cannot become the lost rank, though nothing had said so."""
    job = FakeJob(folder, config={"incident_dir": str(incidents)})
    job.train()
    for worker in job.ranks:
        job.say(worker, SETTLED)
    job.mute.add("n0.s0")
    job.die("n0.w1")
    job.settle()
    job.say("n0.s0", msg.Disabled("no torch"))
    job.settle()
    assert job.stop is not None
    return job


def test_an_incident_says_what_was_promised_and_what_came_of_it(tmp_path: Path) -> None:
    job = broken_promise(tmp_path / "jit", tmp_path / "incidents")
    (told,) = job.told(events.IncidentKept)
    record = json.loads((Path(told.directory) / RECORD).read_text())
    assert record["promised"] == {
        "level": "protected",
        "reason": "any rank can be replaced, at any moment of a step",
        "spares": 1,
    }
    assert record["joins_that_failed"][0]["reason"] == "no torch"
    assert "no torch" in told.reason
    assert list(Path(told.directory).glob("rank-*")) == []


def test_only_the_newest_are_kept_and_other_folders_are_left_alone(tmp_path: Path) -> None:
    folder = tmp_path / "incidents"
    for number in range(KEPT + 2):
        (folder / f"old-{number}").mkdir(parents=True)
        (folder / f"old-{number}" / RECORD).write_text("{}")
    (folder / "mine").mkdir()
    broken_promise(tmp_path / "jit", folder)
    assert len(list(folder.glob(f"*/{RECORD}"))) == KEPT
    assert (folder / "run-m1" / RECORD).exists()
    assert (folder / "mine").exists()


@pytest.mark.parametrize("blocked", [True, False], ids=["not writable", "nowhere"])
def test_where_nothing_can_be_written_it_is_told_all_the_same(blocked: bool, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    folder = str(tmp_path / "file" / "below") if blocked else ""
    job = broken_promise(tmp_path / "jit", folder)
    (told,) = job.told(events.IncidentKept)
    assert told.directory == ""
    assert bool([e for e in job.told(events.Log) if "an incident could not be written" in e.text]) == blocked
