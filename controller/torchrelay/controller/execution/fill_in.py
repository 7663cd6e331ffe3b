"""Fills in what the migration protocol leaves open in orders: journals, environments, folders, secrets."""

from __future__ import annotations

import dataclasses
import secrets

from torchrelay.controller.checkpoints.checkpoint import JobCheckpoint, tensors_folder
from torchrelay.controller.checkpoints.rollback import Rollback
from torchrelay.controller.config import ControllerConfig
from torchrelay.controller.picture.job import Job
from torchrelay.protocol.launch_env import torchrun_env
from torchrelay.protocol.messages import Assign, Plan, Rebuild, SaveCheckpoint, Serve, ShimOrder
from torchrelay.protocol.names import GATE_SECRET_BYTES
from torchrelay.protocol.words.phases import RESUME, ROLLBACK
from torchrelay.protocol.words.positions import JoinerAction


class OrderFiller:
    def __init__(self, config: ControllerConfig, job: Job, rollback: Rollback) -> None:
        self._config = config
        self._job = job
        self._rollback = rollback
        self._assigned: dict[int, bytes] = {}
        """The record of the set-up that the process which is to take over each rank has begun with."""
        self._gate_secret = (0, b"")
        """Generation and secret of the newest one that connects its ranks."""

    def fill_in(self, kind: str, rank: int, order: ShimOrder, checkpoint: JobCheckpoint | None) -> ShimOrder:
        """Fill in an order. `kind`: of the migration; `checkpoint`: what all ranks enter from, on resume."""
        if isinstance(order, Rebuild):
            if self._gate_secret[0] != order.generation:
                self._gate_secret = order.generation, secrets.token_bytes(GATE_SECRET_BYTES)
            return dataclasses.replace(order, gate_secret=self._gate_secret[1])
        if kind == ROLLBACK and isinstance(order, (Assign, Plan)):
            return self._from_copy(rank, order)
        if kind == ROLLBACK and isinstance(order, Serve):
            return dataclasses.replace(order, kept=self._rollback.folder_of(order.token))
        journal = self._job.journal(rank)
        if isinstance(order, Assign):
            self._assigned[rank] = journal.set_up
            return dataclasses.replace(order, env=self.environment(rank), set_up=journal.set_up)
        if isinstance(order, Plan) and order.action in set(JoinerAction):
            shadow = order.action == JoinerAction.SHADOW
            at = order.target - 1 if shadow else order.target
            order = dataclasses.replace(
                order, journal=journal.boundaries[at], gate_journal=journal.gates[at] if shadow else b""
            )
            if shadow:
                order = dataclasses.replace(order, after=journal.after.get(at, b""))
            if journal.set_up != self._assigned.get(rank, journal.set_up):
                order = dataclasses.replace(order, set_up=journal.set_up)
            if kind == RESUME and checkpoint is not None:
                part = checkpoint.ranks[rank]
                log = checkpoint.collective_log if shadow else b""
                folder = tensors_folder(order.directory, checkpoint.tensors_of.get(rank, rank))
                order = dataclasses.replace(order, collective_log=log, ddp_layout=part.ddp_layout, directory=folder)
        elif isinstance(order, SaveCheckpoint):
            order = dataclasses.replace(order, directory=tensors_folder(order.directory, rank))
        return order

    def environment(self, rank: int) -> dict[str, str]:
        """Return the environment that the launcher has told the rank, or would tell it."""
        if rank in self._job.launch:
            return self._job.launch[rank]
        c = self._config
        return torchrun_env(
            rank,
            world_size=c.world_size,
            nproc_per_node=c.nproc_per_node,
            master_addr=c.master_addr,
            master_port=c.master_port,
            run_id=c.run_id,
            restarts=c.scripts_begun,
        )

    def _from_copy(self, rank: int, order: Assign | Plan) -> Assign | Plan:
        copy = self._rollback.copies[rank]
        if isinstance(order, Assign):
            return dataclasses.replace(order, env=self.environment(rank), set_up=copy.set_up)
        kept = self._rollback.folder_for(rank)
        return dataclasses.replace(order, journal=copy.journal, ddp_layout=copy.ddp_layout, kept=kept)
