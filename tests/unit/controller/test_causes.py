"""Each migration says in one word why it began, in both of its events."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from support.fake_job import FakeJob
from support.health_jobs import job_with, see

from torchrelay.protocol import events
from torchrelay.protocol import messages as msg
from torchrelay.protocol.names import TOLD_TO_END
from torchrelay.protocol.words.causes import MigrationCause as Cause


def asked(job: FakeJob) -> None:
    assert job.core.user_requests.migrate(msg.MigrateRequest(1, "a new fan"), job.now_s).accepted


def told_to_end(job: FakeJob) -> None:
    job.say("n0.w1", msg.MigrationWanted(TOLD_TO_END))


def evidence(job: FakeJob) -> None:
    see(job, "xid", "GPU-1", code=48)


def dies(job: FakeJob) -> None:
    job.die("n0.w1")


def hangs(job: FakeJob) -> None:
    job.still = set(job.ranks)
    job.waiting = {"n0.w0", "n0.w2"}
    job.tick(9.0)
    job.still, job.waiting = set(), set()


@pytest.mark.parametrize(
    ("strike", "cause"),
    [
        (asked, Cause.ASKED),
        (told_to_end, Cause.TOLD_TO_END),
        (evidence, Cause.EVIDENCE),
        (dies, Cause.PROCESS),
        (hangs, Cause.HANG),
    ],
)
def test_a_migration_says_why_it_began(tmp_path: Path, strike: Callable[[FakeJob], None], cause: Cause) -> None:
    job = job_with(tmp_path)
    strike(job)
    job.settle()
    job.tick(1.0)
    job.settle()
    assert [e.cause for e in job.told(events.MigrationStarted)] == [cause.value]
    assert [(e.outcome, e.cause) for e in job.told(events.MigrationFinished)] == [("committed", cause.value)]


def test_ranks_that_are_lost_with_their_machine_say_so(tmp_path: Path) -> None:
    job = FakeJob(tmp_path, world_size=4, spares=2, nnodes=2)
    job.train()
    job.tick(1.0)
    for worker in job.ranks:
        job.say(worker, msg.JournalsCopied(job.sent(msg.CopyJournals)[worker].node, 5))
    job.silent.add("n1")
    for worker in ("n0.w0", "n0.w1"):
        job.waiting.add(worker)
        job.still.add(worker)
    job.tick(10.0)
    job.settle()
    assert {e.cause for e in job.told(events.MigrationFinished)} == {Cause.NODE.value}
