"""Wishes for planned migrations: accepted, refused with the reason, or kept until their time comes."""

from __future__ import annotations

from torchrelay.controller.driver import Driver
from torchrelay.controller.job import Job
from torchrelay.controller.outbox import Outbox
from torchrelay.protocol import migration_events as m
from torchrelay.protocol.messages import MigrateReply


class Requests:
    def __init__(self, job: Job, outbox: Outbox, driver: Driver) -> None:
        self._job, self._outbox, self._driver = job, outbox, driver
        self._wanted: dict[int, str] = {}

    @property
    def is_waiting(self) -> bool:
        """Whether a process that asked to be moved is still to be."""
        return bool(self._wanted)

    def migrate(self, rank: int, reason: str, now_s: float) -> MigrateReply:
        refusal = self._never(rank) or self._not_now()
        if refusal:
            return MigrateReply(False, "", refusal)
        name = self._driver.begin(m.MoveRequested(rank, reason or "asked for"), now_s)
        return MigrateReply(
            True, name, f"rank {rank} moves as soon as a spare is ready for it; training goes on meanwhile"
        )

    def want(self, rank: int, reason: str, now_s: float) -> None:
        """A process asks to be moved, and has nobody to tell it to ask again later."""
        if refusal := self._never(rank):
            self._outbox.log("warning", f"rank {rank} asked to be moved: {refusal}")
            return
        self._wanted[rank] = reason
        self.tick(now_s)

    def tick(self, now_s: float) -> None:
        for rank, reason in list(self._wanted.items()):
            if refusal := self._never(rank):
                del self._wanted[rank]
                self._outbox.log("warning", f"rank {rank} asked to be moved: {refusal}")
            elif not self._not_now():
                del self._wanted[rank]
                self._driver.begin(m.MoveRequested(rank, reason), now_s)

    def _never(self, rank: int) -> str:
        job = self._job
        if not 0 <= rank < job.world_size:
            return f"there is no rank {rank}; the job has ranks 0 to {job.world_size - 1}"
        if job.protection == "off":
            return f"this job is not protected: {job.protection_reason}"
        if rank in job.holders and job.holder(rank).finishing:
            return f"rank {rank} has reached the end of its script"
        if not job.spares:
            return "there is no spare to move it to; start the job with more --spares"
        return ""

    def _not_now(self) -> str:
        job, migration = self._job, self._driver.migration
        if migration is not None:
            s = migration.state
            return f"{s.migration} is under way (rank {s.rank}, {s.phase.value}); ask again when it is over"
        if because := job.unprotected_because():
            return f"not yet: {because}"
        if not any(w.warm for w in job.spares):
            return "the spare is still starting; ask again in a few seconds"
        return ""
