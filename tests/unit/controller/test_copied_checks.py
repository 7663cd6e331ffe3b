"""A rank was lost with the machine of its controller: what it held is known from the copies of its journals."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.fake_job import FakeJob

from torchrelay.protocol import events
from torchrelay.protocol import messages as msg
from torchrelay.protocol.transport.wire import HEAD_BYTES, encode

CHECKS = [msg.ReplicaCheck(number, {"w": f"digest {number}"}) for number in (1, 2, 4)]


def content(*checks: msg.ReplicaCheck) -> msg.JournalContent:
    return msg.JournalContent("n0.w1", {5: b"five"}, checks={c.boundary: encode(c)[HEAD_BYTES:] for c in checks})


@pytest.fixture
def job(tmp_path: Path) -> FakeJob:
    made = FakeJob(tmp_path)
    made.train()
    made.core.job.checks.pop(1)
    return made


def test_what_it_told_another_controller_is_heard_with_its_journal(job: FakeJob) -> None:
    job.give(content(*CHECKS), "n0")
    assert list(job.core.job.checks[1]) == CHECKS
    job.give(content(*CHECKS), "n0")
    assert list(job.core.job.checks[1]) == CHECKS, "once"


def test_what_this_controller_has_heard_itself_counts(job: FakeJob) -> None:
    heard = msg.ReplicaCheck(2, {"w": "heard"})
    job.core.job.add_check(1, heard)
    job.give(content(*CHECKS), "n0")
    assert list(job.core.job.checks[1]) == [heard]
    job.core.job.distrust_newest_check(1)
    job.give(content(*CHECKS), "n0")
    assert list(job.core.job.checks[1]) == [], "nor is a check that is distrusted brought back"


def test_what_cannot_be_read_is_told_and_is_no_reason_to_end(job: FakeJob) -> None:
    job.give(msg.JournalContent("n0.w1", {5: b"five"}, checks={1: b"{}"}), "n0")
    assert 1 not in job.core.job.checks
    assert [log for log in job.told(events.Log) if "what n0.w1 has told of its tensors cannot be read" in log.text]
    assert job.core.job.journal(1).boundaries[5] == b"five"
