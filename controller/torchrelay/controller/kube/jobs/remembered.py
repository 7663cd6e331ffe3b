"""The words of a TrainingJob for a controller that was not there before. Pure."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from torchrelay.controller.kube.status.losses import Loss, read_losses
from torchrelay.controller.kube.status.time_used import TimeUsed, read_time_used
from torchrelay.controller.restart.job_restart import RestartPlan
from torchrelay.protocol.errors import FatalError, FrameError
from torchrelay.protocol.kube.holders import unpack_holders


@dataclass(frozen=True)
class Remembered:
    """What a TrainingJob says. `holders`: rank -> worker; `restarts`: at which steps the job has begun again.

    `restart`: how it does so just now, with `world_size` and what the launcher has told one of its processes.
    `machines`: agent -> its pod's node. `losses`: the latest. `used`: the job's time.
    `lineage`: what its just-in-time checkpoints are known by.
    """

    holders: dict[int, str] = field(default_factory=dict)
    restarts: tuple[int, ...] = ()
    restart: RestartPlan | None = None
    world_size: int = 0
    launch: dict[str, str] = field(default_factory=dict)
    machines: dict[str, str] = field(default_factory=dict)
    losses: tuple[Loss, ...] = ()
    used: TimeUsed = field(default_factory=TimeUsed)
    lineage: str = ""


def write_down(restart: RestartPlan, world_size: int, launch: Mapping[str, str]) -> str:
    """Return the restart as text that `recall` understands."""
    known = {"launch": {str(r): dict(env) for r, env in restart.launch.items()}, "first": dict(launch)}
    plan = {
        "directory": restart.directory,
        "checkpoint": restart.checkpoint,
        "aside": restart.aside,
        "step": restart.step,
    }
    return json.dumps({"worldSize": world_size, **known, **plan}, sort_keys=True)


def recall(status: Mapping[str, Any]) -> Remembered:
    """Read the status of a TrainingJob. Raises FatalError for a record that is none."""
    restarts = tuple(status.get("restartSteps") or ())
    try:
        known = [(r["rank"], r["worker"], r.get("node", "")) for r in status.get("ranks") or () if r.get("worker")]
        known = unpack_holders(status["holders"]) if status.get("holders") else known
        holders = {rank: worker for rank, worker, _ in known}
        machines = {worker.rpartition(".")[0]: node for _, worker, node in known if node}
        losses = read_losses(status.get("losses") or ())
        used = read_time_used(status)
        lineage = str(status.get("lineage") or "")
        if not (record := status.get("record")):
            return Remembered(holders, restarts, machines=machines, losses=losses, used=used, lineage=lineage)
        noted = json.loads(record)
        launch = {int(rank): dict(env) for rank, env in noted["launch"].items()}
        plan = RestartPlan(launch, noted["directory"], noted["checkpoint"], tuple(noted["aside"]), noted["step"])
        size = int(noted["worldSize"])
        first = dict(noted["first"])
        return Remembered(holders, restarts, plan, size, first, machines, losses, used, lineage)
    except (ValueError, KeyError, TypeError, AttributeError, FrameError) as e:
        raise FatalError(f"a record of a restart that this version does not understand: {e}") from e
