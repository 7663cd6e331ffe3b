"""Removes TrainingJobs some time after their end. What belongs to them goes with them: pool, migrations, spares."""

from __future__ import annotations

import asyncio
import datetime as dt
import logging
import time
from dataclasses import dataclass

from torchrelay.controller.kube.client.api import TRAINING_JOBS, Api, Object, Refused
from torchrelay.controller.kube.cluster.pods import JobKey
from torchrelay.controller.kube.decide.expiry import Kept, judge_expiry
from torchrelay.controller.kube.jobs.ledger import Ledger
from torchrelay.controller.kube.status.losses import STAMP
from torchrelay.protocol.errors import RetryableError
from torchrelay.protocol.logs.log_records import of_run

log = logging.getLogger(__name__)

LOOK_S = 5.0


@dataclass
class _Job:
    """A TrainingJob. `ended_s`: the time of day; None if it does not say."""

    uid: str
    phase: str
    ended_s: float | None
    unseen_since_s: float | None = None
    failure: str = ""
    """Why it could not be removed, as it was said last."""


class Expiry:
    """The TrainingJobs. `changed` takes what the mirror of TrainingJobs sees."""

    def __init__(self, api: Api, ledger: Ledger, ttl_s: float) -> None:
        self._api = api
        self._ledger = ledger
        self._ttl_s = ttl_s
        self._jobs: dict[JobKey, _Job] = {}
        self._said = ""

    def changed(self, job: Object, deleted: bool) -> None:
        meta = job["metadata"]
        status = job.get("status") or {}
        key = JobKey(meta["namespace"], meta["name"])
        if deleted:
            self._jobs.pop(key, None)
            return
        known = self._jobs.get(key)
        now = self._jobs[key] = _Job(meta["uid"], status.get("phase", ""), _read(status.get("finishedAt")))
        if known is not None and known.uid == now.uid:
            now.unseen_since_s = known.unseen_since_s
            now.failure = known.failure

    async def run(self) -> None:
        """Look at all jobs again and again, until cancelled."""
        while True:
            try:
                await self.look(time.time(), time.monotonic())
            except RetryableError as e:
                if str(e) != self._said:
                    self._said = str(e)
                    log.warning("ended jobs are not removed yet: %s", e)
            await asyncio.sleep(LOOK_S)

    async def look(self, wall_s: float, now_s: float) -> None:
        """Look at all jobs. A fault at one job does not stop the others. Raises RetryableError while the API server is away."""
        for key, job in list(self._jobs.items()):
            try:
                await self._look_at(key, job, wall_s, now_s)
            except RetryableError:
                raise
            except Exception as e:  # noqa: BLE001 - whatever it is, the next job must not notice
                self._failed(key, job, e)

    async def _look_at(self, key: JobKey, job: _Job, wall_s: float, now_s: float) -> None:
        if key in self._ledger.runs or self._ledger.pods_of(key):
            job.unseen_since_s = None
        elif job.unseen_since_s is None:
            job.unseen_since_s = now_s
        unseen_s = now_s - job.unseen_since_s if job.unseen_since_s is not None else 0.0
        ended_s = wall_s - job.ended_s if job.ended_s is not None else None
        verdict = judge_expiry(Kept(job.phase, ended_s, unseen_s), self._ttl_s)
        if verdict.remove:
            of_run(log, key).info("%s: its TrainingJob is removed: %s", key, verdict.reason)
            await self._api.delete(TRAINING_JOBS, key.name, key.namespace)
            self._jobs.pop(key, None)

    def _failed(self, key: JobKey, job: _Job, error: Exception) -> None:
        """Tell once that a job could not be looked at. It is tried again at the next look."""
        if (said := f"{type(error).__name__}: {error}") != job.failure:
            job.failure = said
            expected = isinstance(error, Refused)
            of_run(log, key).error(
                "%s: its TrainingJob is not removed: %s", key, said, exc_info=None if expected else error
            )
        if not isinstance(error, Refused) and (run := self._ledger.runs.get(key)) is not None:
            run.failed(error)


def _read(stamp: str | None) -> float | None:
    """Return the time of day; None for a stamp that is none: another program may have written it."""
    try:
        return dt.datetime.strptime(stamp or "", STAMP).replace(tzinfo=dt.timezone.utc).timestamp()
    except ValueError:
        return None
