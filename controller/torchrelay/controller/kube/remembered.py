"""What a TrainingJob says to a controller that was not there before. Pure."""

from __future__ import annotations

import base64
import json
import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from torchrelay.controller.kube.losses import Loss, read_losses
from torchrelay.controller.restart.job_restart import RestartPlan
from torchrelay.protocol.errors import FatalError

MOST_CHARS = 1_000_000
"""An object of the API may have 1.5 MiB."""


@dataclass(frozen=True)
class Remembered:
    """`holders`: rank -> worker; `restarts`: at which steps the job has begun again; `restart`: how it does so just now, with
    `world_size` and what the launcher has told one of its processes. `machines`: agent -> its pod's node. `losses`: the latest.
    """

    holders: dict[int, str] = field(default_factory=dict)
    restarts: tuple[int, ...] = ()
    restart: RestartPlan | None = None
    world_size: int = 0
    launch: dict[str, str] = field(default_factory=dict)
    machines: dict[str, str] = field(default_factory=dict)
    losses: tuple[Loss, ...] = ()


def write_down(restart: RestartPlan, world_size: int, launch: Mapping[str, str]) -> str:
    """As text that `recall` understands."""
    known = {"launch": {str(r): dict(env) for r, env in restart.launch.items()}, "first": dict(launch)}
    plan = {
        "directory": restart.directory,
        "checkpoint": restart.checkpoint,
        "aside": restart.aside,
        "step": restart.step,
    }
    return json.dumps({"worldSize": world_size, **known, **plan}, sort_keys=True)


def pack_holders(holders: Mapping[int, str], node_of: Callable[[str], str]) -> str:
    """Who has which rank, on which node, as text that `recall` understands: about 10 bytes a rank. Empty where it would be larger
    than MOST_CHARS: then agents alone tell another controller.
    """
    known = [(rank, worker, node_of(worker.partition(":")[0])) for rank, worker in sorted(holders.items())]
    packed = base64.b64encode(zlib.compress(json.dumps(known, separators=(",", ":")).encode())).decode()
    return packed if len(packed) <= MOST_CHARS else ""


def _unpack(packed: str) -> list[tuple[int, str, str]]:
    """Raises ValueError, zlib.error, TypeError for what is none."""
    known = json.loads(zlib.decompress(base64.b64decode(packed, validate=True)))
    return [(int(rank), str(worker), str(node)) for rank, worker, node in known]


def recall(status: Mapping[str, Any]) -> Remembered:
    """Raises FatalError for a record that is none."""
    restarts = tuple(status.get("restartSteps") or ())
    try:
        known = [(r["rank"], r["worker"], r.get("node", "")) for r in status.get("ranks") or () if r.get("worker")]
        known = _unpack(status["holders"]) if status.get("holders") else known
        holders = {rank: worker for rank, worker, _ in known}
        machines = {worker.rpartition(".")[0]: node for _, worker, node in known if node}
        losses = read_losses(status.get("losses") or ())
        if not (record := status.get("record")):
            return Remembered(holders, restarts, machines=machines, losses=losses)
        noted = json.loads(record)
        launch = {int(rank): dict(env) for rank, env in noted["launch"].items()}
        plan = RestartPlan(launch, noted["directory"], noted["checkpoint"], tuple(noted["aside"]), noted["step"])
        return Remembered(holders, restarts, plan, int(noted["worldSize"]), dict(noted["first"]), machines, losses)
    except (ValueError, KeyError, TypeError, AttributeError, zlib.error) as e:
        raise FatalError(f"a record of a restart that this version does not understand: {e}") from e
