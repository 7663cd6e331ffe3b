"""Writes the stories of jobs to their resources; what could not be written is written later."""

from __future__ import annotations

import logging
import time
from typing import Any

from torchrelay.controller.kube.api import (
    CONFLICT,
    EVENTS,
    MIGRATIONS,
    NOT_FOUND,
    SPARE_POOLS,
    TRAINING_JOBS,
    Api,
    Kind,
    Object,
    Refused,
)
from torchrelay.controller.kube.ledger import Ledger
from torchrelay.controller.kube.pods import JobKey, Pod
from torchrelay.controller.kube.remembered import write_down
from torchrelay.controller.kube.run import JobRun
from torchrelay.controller.kube.story import MigrationStory, job_status
from torchrelay.controller.kube.tellings import Telling, event
from torchrelay.protocol import kube_names as kube
from torchrelay.protocol.kube_annotations import Wishes

log = logging.getLogger(__name__)


class Scribe:
    """Methods raise RetryableError while the API server is away, and Refused."""

    def __init__(self, api: Api, ledger: Ledger) -> None:
        self._api, self._ledger = api, ledger
        self._jobs: dict[JobKey, Object] = {}
        self._told: dict[JobKey, Object] = {}
        self._told_pools: dict[JobKey, tuple[str, Object]] = {}

    async def training_job(self, key: JobKey, pod: Pod, wishes: Wishes) -> Object:
        """The TrainingJob resource, made where there is none."""
        if key in self._jobs:
            return self._jobs[key]
        found = await self._api.get(TRAINING_JOBS, key.name, key.namespace)
        if found is None:
            spec: Object = {"owner": pod.annotations.get(kube.OWNER, ""), "policy": wishes.policy}
            spec["fallback"], spec["respawnLimit"] = list(wishes.fallback), wishes.respawn_limit
            if wishes.spares is not None:
                spec["spares"] = wishes.spares
            if wishes.pool:
                spec["pool"] = wishes.pool
            found = await self._make_or_find(TRAINING_JOBS, _manifest("TrainingJob", key.namespace, key.name, spec))
        self._jobs[key] = found
        return found

    def known_job(self, key: JobKey) -> Object | None:
        return self._jobs.get(key)

    async def spare_pool(self, key: JobKey, spares: int) -> Object:
        """The job's own SparePool, made where there is none; people may change its number. It goes with its TrainingJob."""
        found = await self._api.get(SPARE_POOLS, key.name, key.namespace)
        if found is None:
            manifest = _manifest("SparePool", key.namespace, key.name, {"job": key.name, "spares": spares})
            if owner := self._jobs.get(key):
                manifest["metadata"]["ownerReferences"] = [_owner(owner)]
            found = await self._make_or_find(SPARE_POOLS, manifest)
        return found

    async def _make_or_find(self, kind: Kind, manifest: Object) -> Object:
        try:
            return await self._api.create(kind, manifest)
        except Refused as e:
            meta = manifest["metadata"]
            found = await self._api.get(kind, meta["name"], meta["namespace"]) if e.code == CONFLICT else None
            if found is None:
                raise
            return found  # somebody was faster, or it was made by a call whose answer was lost

    async def write(self, run: JobRun) -> None:
        """All that has changed."""
        await self.write_migrations(run)
        node_of = {p.name: p.node for p in self._ledger.pods_of(run.key)}
        status = run.core.status(time.monotonic())
        gathers = run.core.gathering.state if run.gathers and run.core.gathering is not None else ""
        record = write_down(run.restart, run.core.job.world_size, run.launch) if gathers and run.restart else ""
        if gathers and run.trouble:
            gathers += f"; {run.trouble}"
        told = job_status(status, run.story, lambda pod: node_of.get(pod, ""), run.restarts, gathers, record)
        before = self._told.get(run.key, {})
        news = {field: value for field, value in told.items() if field not in before or value != before[field]}
        if news and run.key in self._jobs:
            self._told[run.key] = told
            try:
                await self._status(TRAINING_JOBS, run.key.namespace, run.key.name, news)
            except BaseException:
                self._told.pop(run.key, None)
                raise

    async def _write_events(self, run: JobRun) -> None:
        """After what they are about has been written. An event that is refused is lost: they are a convenience."""
        job, tellings = self._jobs.get(run.key), run.story.tellings
        while tellings:
            telling = tellings[0]
            if telling.for_job and job is not None:
                await self._event(telling, "TrainingJob", run.key, run.key.name, job["metadata"]["uid"])
            if (story := run.story.numbered(telling.migration)) is not None and story.exists:
                story.uid = story.uid or await self._uid_of(run.key, story.name)
                if story.uid:
                    await self._event(telling, "Migration", run.key, story.name, story.uid)
            tellings.pop(0)

    async def _event(self, telling: Telling, kind: str, key: JobKey, name: str, uid: str) -> None:
        try:
            await self._api.create(EVENTS, event(telling, kind, key.namespace, name, uid))
        except Refused as e:
            log.warning("an event is not written: %s", e)

    async def _uid_of(self, key: JobKey, migration: str) -> str:
        found = await self._api.get(MIGRATIONS, migration, key.namespace)
        return str(found["metadata"]["uid"]) if found is not None else ""

    async def write_migrations(self, run: JobRun) -> None:
        await self._write_stories(run)
        await self._write_events(run)

    async def _write_stories(self, run: JobRun) -> None:
        for story in (*run.story.waiting.values(), *run.story.migrations):
            if story.changed:
                await self._write_migration(run.key, story)

    async def pool_status(self, key: JobKey, name: str, status: Object) -> None:
        """Written where it has changed."""
        if self._told_pools.get(key) != (name, status):
            self._told_pools.pop(key, None)
            await self._status(SPARE_POOLS, key.namespace, name, status)
            self._told_pools[key] = name, status

    async def _write_migration(self, key: JobKey, story: MigrationStory) -> None:
        story.changed = False
        try:
            if not story.exists:
                await self._make(key, story)
                story.exists = True
            await self._status(MIGRATIONS, key.namespace, story.name, story.status)
        except BaseException:
            story.changed = True
            raise

    async def _make(self, key: JobKey, story: MigrationStory) -> None:
        manifest = _manifest("Migration", key.namespace, story.name, story.spec)
        if owner := self._jobs.get(key):
            manifest["metadata"]["ownerReferences"] = [_owner(owner)]
        manifest["metadata"]["annotations"] = {kube.ORIGIN: kube.BY_CONTROLLER}
        try:
            await self._api.create(MIGRATIONS, manifest)
        except Refused as e:
            if e.code != CONFLICT:  # it was made by a call whose answer was lost
                raise

    async def _status(self, kind: Any, namespace: str, name: str, status: Object) -> None:
        try:
            await self._api.patch(kind, name, {"status": without_empty(status)}, namespace, status=True)
        except Refused as e:
            if e.code != NOT_FOUND:
                raise
            log.warning("%s %s/%s is gone; its status is not written", kind.name, namespace, name)
            if kind is TRAINING_JOBS:
                for known in (self._jobs, self._told):
                    known.pop(JobKey(namespace, name), None)  # the next look makes it again


def without_empty(status: Object) -> Object:
    """In a merge patch null takes a field away. An empty text must not be sent: API servers have been seen to read it as null."""
    return {k: None if v == "" else _dropped(v) for k, v in status.items()}


def _dropped(value: Any) -> Any:
    if isinstance(value, dict):
        return {k: _dropped(v) for k, v in value.items() if v != ""}
    return [_dropped(v) for v in value] if isinstance(value, list) else value


def _owner(job: Object) -> Object:
    return {
        "apiVersion": kube.API_VERSION,
        "kind": "TrainingJob",
        "name": job["metadata"]["name"],
        "uid": job["metadata"]["uid"],
    }


def _manifest(kind: str, namespace: str, name: str, spec: Object) -> Object:
    meta: Object = {"name": name, "namespace": namespace}
    return {"apiVersion": kube.API_VERSION, "kind": kind, "metadata": meta, "spec": spec}
