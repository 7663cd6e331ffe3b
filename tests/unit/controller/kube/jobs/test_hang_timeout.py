"""How long the others wait in a pod for a rank that hangs and cannot be replaced."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.fake_job import FakeJob
from support.kube_world import KEY, LAUNCH, World, in_world

from torchrelay.controller.config import Policy
from torchrelay.controller.kube.jobs.run import JobRun
from torchrelay.protocol import messages as msg
from torchrelay.protocol.kube import kube_names as kube
from torchrelay.protocol.kube.annotations import read
from torchrelay.protocol.names import BARS

CANNOT_BE_CARRIED = msg.Gap("iterator", BARS, "it (cycle)", "train.py", 7)


def policy_of(annotations: dict[str, str]) -> Policy:
    """What a job of pods with these annotations is looked after with."""
    found: list[Policy] = []

    async def test(w: World) -> None:
        found.append(JobRun(KEY, 2, LAUNCH, read(annotations)).core._config.policy)

    in_world(test)
    return found[0]


@pytest.mark.parametrize(
    ("asked", "group_s", "limit_s", "whose"),
    [
        ({kube.HANG_TIMEOUT: "40"}, 600.0, 40.0, "annotation hang-timeout"),
        ({kube.HANG_TIMEOUT: "0"}, 50.0, 50.0, "the timeout of its process group"),
        ({}, 50.0, 50.0, "the timeout of its process group"),
    ],
)
def test_the_job_falls_after_what_its_annotation_says_with_culprit_and_stack(
    tmp_path: Path, asked: dict[str, str], group_s: float, limit_s: float, whose: str
) -> None:
    job = FakeJob(tmp_path, config={"policy": policy_of(asked)})
    job.train()
    gaps = (CANNOT_BE_CARRIED,)
    job.say(
        "n0.w0", msg.Report("train.py", 30, 400, 900, 4, ("it (cycle)",), (), gaps, 5, True, group_timeout_s=group_s)
    )
    job.still = set(job.ranks)
    job.waiting = {"n0.w0", "n0.w2"}
    job.tick(limit_s - 2)
    assert job.stop is None
    job.tick(4.0)
    assert job.stop is not None
    assert f"the others do not wait longer than {limit_s:g} s ({whose})" in job.stop.reason
    assert "rank 1 has shown no progress" in job.stop.reason
    assert "f (train.py:3)" in job.stop.reason
