"""What a TrainingJob says to a controller that was not there before. Pure."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from torchrelay.controller.gathering import Restart
from torchrelay.controller.kube.losses import Loss, read_losses
from torchrelay.protocol.errors import FatalError


@dataclass(frozen=True)
class Remembered:
    """`holders`: rank -> worker; `restarts`: at which steps the job has begun again; `restart`: how it does so just now, with
    `world_size` and what the launcher has told one of its processes. `machines`: agent -> its pod's node. `losses`: the latest.
    """

    holders: dict[int, str] = field(default_factory=dict)
    restarts: tuple[int, ...] = ()
    restart: Restart | None = None
    world_size: int = 0
    launch: dict[str, str] = field(default_factory=dict)
    machines: dict[str, str] = field(default_factory=dict)
    losses: tuple[Loss, ...] = ()


def write_down(restart: Restart, world_size: int, launch: Mapping[str, str]) -> str:
    """As text that `recall` understands."""
    known = {"launch": {str(r): dict(env) for r, env in restart.launch.items()}, "first": dict(launch)}
    plan = {
        "directory": restart.directory,
        "checkpoint": restart.checkpoint,
        "aside": restart.aside,
        "step": restart.step,
    }
    return json.dumps({"worldSize": world_size, **known, **plan}, sort_keys=True)


def recall(status: Mapping[str, Any]) -> Remembered:
    """Raises FatalError for a record that is none."""
    holders = {r["rank"]: r["worker"] for r in status.get("ranks") or () if r.get("worker")}
    machines = {r["worker"].rpartition(".")[0]: r["node"] for r in status.get("ranks") or () if r.get("node")}
    restarts = tuple(status.get("restartSteps") or ())
    try:
        losses = read_losses(status.get("losses") or ())
        if not (record := status.get("record")):
            return Remembered(holders, restarts, machines=machines, losses=losses)
        known = json.loads(record)
        launch = {int(rank): dict(env) for rank, env in known["launch"].items()}
        plan = Restart(launch, known["directory"], known["checkpoint"], tuple(known["aside"]), known["step"])
        return Remembered(holders, restarts, plan, int(known["worldSize"]), dict(known["first"]), machines, losses)
    except (ValueError, KeyError, TypeError, AttributeError) as e:
        raise FatalError(f"a record of a restart that this version does not understand: {e}") from e
