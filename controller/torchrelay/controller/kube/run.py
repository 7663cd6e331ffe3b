"""One job in a cluster, from its first process to its end: the same core as `torchrelay run` has, and what is told of it."""

from __future__ import annotations

import asyncio
import logging
import secrets
import time
from collections.abc import Mapping

from torchrelay.controller.config import ControllerConfig
from torchrelay.controller.core import Core
from torchrelay.controller.kube.decide.removal import Deleted, judge_removal
from torchrelay.controller.kube.pods import JobKey
from torchrelay.controller.kube.story import Story
from torchrelay.controller.server import Relay
from torchrelay.protocol import kube_names as kube
from torchrelay.protocol.health.policy import HealthPolicy
from torchrelay.protocol.kube_annotations import Wishes
from torchrelay.protocol.messages import JobEvent, MigrateReply, MigrateRequest
from torchrelay.protocol.names import DEFAULT_MASTER_PORT

log = logging.getLogger(__name__)

NO_FOLDER = "/torchrelay-has-no-checkpoint-dir"
"""Where a job names no folder for checkpoints, nothing can be saved: the attempt fails, and says so."""
EXIT_REMOVED = 143
"""128 + SIGTERM: what a process ends with whose pod is deleted."""
_UNTOLD = ("progress", "report", "coverage")
"""Events that are long or many, and stand in the TrainingJob."""


class JobRun:
    """`launch`: what the launcher told one of its processes. `restarts` of the job make runs of their own."""

    def __init__(
        self,
        key: JobKey,
        world_size: int,
        launch: Mapping[str, str],
        wishes: Wishes,
        health: HealthPolicy | None = None,
    ) -> None:
        self.key, self.id = key, secrets.token_hex(3)
        self.core = Core(_config(key, self.id, world_size, launch, wishes), time.time, None, health)
        self.story = Story(key.name, f"{key.name[:40]}-{self.id}", lambda: self.core.job.holders)
        self.relay = Relay(self.core, self._hear)
        self._deleted: dict[int, tuple[str, Deleted]] = {}
        self.task = asyncio.create_task(self.relay.run())

    def _hear(self, event: JobEvent) -> None:
        if event.name not in _UNTOLD:
            log.info("%s: %s %s", self.key, event.name, event.fields_json)
        self.story.take(event)

    @property
    def is_over(self) -> bool:
        return self.core.ended is not None

    @property
    def runs(self) -> bool:
        """Whether some rank lives."""
        return not self.is_over and any(w.alive for w in self.core.job.rank_workers)

    def took_over(self, agent: str) -> bool:
        """Whether a process of the pod holds a rank."""
        return any(w.node == agent for w in self.core.job.rank_workers)

    def is_warm(self, agent: str) -> bool:
        return any(w.node == agent and w.warm for w in self.core.job.spares)

    def is_attached(self, agent: str) -> bool:
        """Whether the agent of the pod has come."""
        return agent in self.core.job.nodes

    def is_here(self, agent: str) -> bool:
        """Whether a process of the pod is known."""
        return any(w.node == agent for w in self.core.job.workers.values())

    def rank_in(self, agent: str) -> int | None:
        return next((w.rank for w in self.core.job.rank_workers if w.node == agent and w.alive), None)

    def pod_deleted(self, agent: str, node_is_left: bool, now_s: float) -> None:
        """A pod is being deleted, or is gone from the API; the job is over if somebody deletes all of it."""
        for worker in self.core.job.rank_workers:
            if worker.node == agent:
                known = self._deleted.get(worker.rank)
                if known is None or known[0] != agent:
                    self._deleted[worker.rank] = agent, Deleted(now_s, node_is_left)
        deleted = {rank: when for rank, (_, when) in self._deleted.items()}
        verdict = judge_removal(self.core.job.world_size, deleted, now_s)
        if verdict.removed and not self.is_over:
            self.relay.end(EXIT_REMOVED, verdict.reason)

    def migrate(self, rank: int, reason: str) -> MigrateReply:
        return self.relay.migrate(MigrateRequest(rank, reason))


def _config(key: JobKey, run: str, world_size: int, launch: Mapping[str, str], wishes: Wishes) -> ControllerConfig:
    port = launch.get("MASTER_PORT", "")
    return ControllerConfig(
        run_id=f"{key.name}-{run}",
        nnodes=world_size,
        nproc_per_node=1,
        secret_file="",
        address_file="",
        jit_dir=wishes.checkpoint_dir or NO_FOLDER,
        master_addr=launch.get("MASTER_ADDR", ""),
        master_port=int(port) if port.isdigit() else DEFAULT_MASTER_PORT,
        adopted=True,
        observe=wishes.policy == kube.POLICY_OBSERVE,
        planned_only=wishes.policy == kube.POLICY_PLANNED_ONLY,
    )
