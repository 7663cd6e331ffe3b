"""Jobs on devices whose evidence is given by hand."""

from __future__ import annotations

from pathlib import Path

from support.fake_job import FakeJob
from torchrelay.protocol.events import (
    HealthVerdict,
    MigrationFinished,
)
from torchrelay.protocol.health.policy import HealthPolicy
from torchrelay.protocol.health.policy_file import default_policy
from torchrelay.protocol.messages import HealthSignal, HealthSignals, HealthSources

POLICY = default_policy()


def job_with(
    folder: Path, spares: int = 1, policy: HealthPolicy = POLICY, world_size: int = 3, **config: object
) -> FakeJob:
    """GPU-0 and port-0 belong to n0.w0 and so on; spares have those behind."""
    job = FakeJob(folder, world_size, spares, health=policy, config=config)
    job.train()
    workers = [*job.ranks, *job.spares]
    job.give(HealthSources({"nvidia": "ok"}, {w: f"nvidia-driver GPU-{i} port-{i}" for i, w in enumerate(workers)}))
    return job


def see(job: FakeJob, kind: str, device: str = "", **more: object) -> None:
    job.give(HealthSignals((HealthSignal(kind, device, **more),)))  # type: ignore[arg-type]  # of any of its fields


def moved(job: FakeJob) -> list[tuple[str, int]]:
    job.settle()
    job.tick(1.0)
    job.settle()
    return [(e.kind, e.rank) for e in job.told(MigrationFinished) if e.outcome == "committed"]


def outcomes(job: FakeJob) -> list[tuple[str, str]]:
    return [(v.action, v.outcome) for v in job.told(HealthVerdict)]
