"""What a job saves just in time says whose it is."""

from __future__ import annotations

import json
from pathlib import Path

from support.fake_job import FakeJob

from torchrelay.controller.checkpoints.checkpoint import CheckpointOrigin, read_checkpoint
from torchrelay.protocol import events
from torchrelay.protocol import messages as msg
from torchrelay.protocol.kube.checkpoint_owner import saved_by
from torchrelay.protocol.names import MANIFEST


def test_a_checkpoint_names_the_command_the_script_and_the_job_that_it_is_of(tmp_path: Path) -> None:
    """Another job of its name, which may have the same folder, does not begin from it, and does not remove it."""
    origin = CheckpointOrigin(("train.py", "--lr", "1"), "ab" * 32, "team/llama/7")
    config = {"command": origin.command, "script_sha256": origin.script_sha256, "job_id": origin.job}
    job = FakeJob(tmp_path, world_size=4, spares=0, config=config)
    job.train()
    job.die("n0.w1")
    job.settle()
    (saved,) = job.told(events.CheckpointSaved)
    manifest = json.loads((Path(saved.directory) / MANIFEST).read_bytes())
    assert saved_by(manifest) == origin.job
    assert read_checkpoint(Path(saved.directory), 4).origin == origin


def test_what_is_cleared_is_the_jobs_own(tmp_path: Path) -> None:
    job = FakeJob(tmp_path, config={"adopted": True, "jit_prefix": "jit-", "job_id": "team/llama/7"})
    job.train()
    job.core.driver.saving.clear(2)
    job.tick()
    told = [o.order for o in job.orders if isinstance(o, msg.ToWorker) and isinstance(o.order, msg.ClearCheckpoints)]
    assert told[-1].keep == 2
    assert {order.job_id for order in told} == {"team/llama/7"}
