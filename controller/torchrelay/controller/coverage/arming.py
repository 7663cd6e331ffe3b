"""Whether ranks are armed: when all have set up their process group, unless one cannot be, or somebody does not want it.

How far that protects the job is for `decide/protection/level.py` to say.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable

from torchrelay.controller.config import ControllerConfig
from torchrelay.controller.decide.listed import listed
from torchrelay.controller.execution.driver import Driver
from torchrelay.controller.outbox import Outbox
from torchrelay.controller.picture.job import Job
from torchrelay.protocol import messages as msg
from torchrelay.protocol.names import GATE_SECRET_BYTES
from torchrelay.protocol.words.phases import Phase


class ArmingController:
    """`news()` is called when it has changed."""

    def __init__(
        self, config: ControllerConfig, job: Job, outbox: Outbox, driver: Driver, news: Callable[[], None]
    ) -> None:
        self._config = config
        self._job = job
        self._outbox = outbox
        self._driver = driver
        self._news = news

    def settle(self) -> None:
        """Arms the ranks once all can be, or lets them run as they are."""
        job = self._job
        if job.protection == "off":
            return
        disabled = [w for w in job.rank_workers if w.disabled]
        if self._config.observe:
            self._protect(False, "its policy is to observe: nothing is done")
        elif disabled:
            self._protect(False, f"rank {disabled[0].rank}: {disabled[0].disabled}")
        elif job.protection == "pending" and self._driver.checkpoint is not None:
            if self._driver.phase in (Phase.HEALTHY, Phase.COMMITTED) and job.holders:
                self._protect(True, "all ranks are back")
        elif job.protection == "pending":
            armed = [w.armed for w in job.rank_workers if w.armed is not None]
            odd = [a for a in armed if a.world_size != job.world_size]
            if odd:
                self._protect(False, f"the script made a process group of {odd[0].world_size}, not {job.world_size}")
            elif len(armed) == job.world_size:
                self._protect(True, "all ranks are watched")
            elif armed:
                missing = sorted(set(range(job.world_size)) - {a.rank for a in armed})
                job.protection_reason = f"ranks {listed(missing)} have not set up their process group yet"

    def _protect(self, on: bool, reason: str) -> None:
        self._job.protection = "on" if on else "off"
        self._job.protection_reason = reason
        if on and not self._job.gate_secret:
            self._job.gate_secret = secrets.token_bytes(GATE_SECRET_BYTES)
        self._news()
        order = msg.Protect(on, reason, self._job.gate_secret if on else b"")
        for worker in self._job.rank_workers:
            if worker.alive:
                self._outbox.to_worker(worker.worker, order)
        if on:
            self._driver.clear_checkpoints(keep=1)
