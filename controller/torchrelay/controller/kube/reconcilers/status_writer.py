"""Writes the stories of jobs to their resources; what could not be written is written later."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import Any

from torchrelay.controller.kube.client.api import (
    CONFLICT,
    EVENTS,
    MIGRATIONS,
    NOT_FOUND,
    SPARE_POOLS,
    TRAINING_JOBS,
    Api,
    Object,
    ObjectKind,
    Refused,
)
from torchrelay.controller.kube.cluster.pods import JobKey, Pod
from torchrelay.controller.kube.decide.belongs import Workload, judge_belongs
from torchrelay.controller.kube.decide.same_job import FoundResource, Here, judge_same_job
from torchrelay.controller.kube.jobs.ledger import Ledger
from torchrelay.controller.kube.jobs.remembered import write_down
from torchrelay.controller.kube.jobs.run import JobRun
from torchrelay.controller.kube.status.conditions import Conditions, ConditionType, find_conditions, find_spares_ready
from torchrelay.controller.kube.status.kube_events import KubeEvent, event
from torchrelay.controller.kube.status.status_builder import MigrationStatus
from torchrelay.controller.kube.status.training_job_status import COMES_FURTHER, job_status
from torchrelay.controller.status import JobSummary
from torchrelay.protocol.kube import kube_names as kube
from torchrelay.protocol.kube.annotations import PodAnnotations
from torchrelay.protocol.kube.holders import pack_holders
from torchrelay.protocol.logs.log_records import of_run

log = logging.getLogger(__name__)

NO_SPARES_WANTED = "the pool asks for no spares"
STEP_WRITES_PER_S = 10.0
"""How often, for all jobs together, it is written that a job has come further, when that is all there is to say."""


class StatusWriter:
    """Writes resources. Methods raise RetryableError while the API server is away, and Refused."""

    def __init__(self, api: Api, ledger: Ledger) -> None:
        self._api = api
        self._ledger = ledger
        self._jobs: dict[JobKey, Object] = {}
        self._told: dict[JobKey, Object] = {}
        self._told_pools: dict[JobKey, tuple[str, Object]] = {}
        self._of: dict[JobKey, str] = {}
        """The lineage of the job that the known resource belongs to."""
        self._removed: dict[JobKey, str] = {}
        self._step_due_s: dict[JobKey, float] = {}
        self._packed: dict[JobKey, tuple[dict[int, str], str]] = {}
        self._conditions: dict[JobKey, Conditions] = {}
        self._pool_conditions: dict[tuple[JobKey, str], Conditions] = {}

    async def training_job(self, run: JobRun, pod: Pod, options: PodAnnotations) -> Object:
        """Return the job's TrainingJob, and make it where there is none.

        What a job of the same name has left there counts no more.
        """
        key = run.key
        belongs = judge_belongs(p.workload for p in self._ledger.pods_of(run.key) if not p.is_spare)
        spec = _spec(pod, options, belongs.to.uid)
        references = [_reference(belongs.to)] if belongs.to.uid else []
        if self._of.get(key) != run.lineage:
            await self._take_in(run, spec, references)
        found = self._jobs[key]
        if spec != {name: found["spec"].get(name) for name in spec}:
            await self._follow(key, found, spec)
        if references != (found["metadata"].get("ownerReferences") or []):
            of_run(log, key).info("%s: %s", key, belongs.reason)
            patch = {"metadata": {"ownerReferences": references}}
            self._jobs[key] = await self._api.patch(TRAINING_JOBS, key.name, patch, key.namespace)
        return self._jobs[key]

    async def _take_in(self, run: JobRun, spec: Object, references: list[Object]) -> None:
        """Find the job's TrainingJob, or make it."""
        key = run.key
        found = await self._api.get(TRAINING_JOBS, key.name, key.namespace)
        if found is None:
            manifest = _manifest("TrainingJob", key.namespace, key.name, without_none(spec))
            manifest["metadata"]["ownerReferences"] = references
            found = await self._make_or_find(TRAINING_JOBS, manifest)
        else:
            before = FoundResource((found.get("status") or {}).get("phase", ""), found["spec"].get("workloadUID", ""))
            verdict = judge_same_job(before, Here(spec["workloadUID"] or "", run.trained_before, run.follows))
            of_run(log, key).info(
                "%s: its TrainingJob is %s: %s", key, "kept" if verdict.same else "new", verdict.reason
            )
            if not verdict.same:
                found = await self._api.patch(TRAINING_JOBS, key.name, {"spec": spec}, key.namespace)
                await self._set_spares(key, spec["spares"])
                run.story.begins_anew(verdict.reason, time.time())
        self._jobs[key] = found
        self._of[key] = run.lineage
        conditions = () if run.story.anew is not None else (found.get("status") or {}).get("conditions") or ()
        self._conditions[key] = Conditions(conditions)
        self._told.pop(key, None)

    async def _follow(self, key: JobKey, found: Object, spec: Object) -> None:
        """Write the spec anew: annotations have changed, since the pods were made anew."""
        if spec["spares"] != found["spec"].get("spares"):
            await self._set_spares(key, spec["spares"])
        self._jobs[key] = await self._api.patch(TRAINING_JOBS, key.name, {"spec": spec}, key.namespace)

    async def _set_spares(self, key: JobKey, spares: int | None) -> None:
        """Set the number of spares in the job's own pool, if it has one already."""
        pool = self._ledger.pools.get(key)
        if spares is not None and pool is not None and pool["spec"].get("job") == key.name:
            patch = {"spec": {"spares": spares}}
            self._ledger.pools[key] = await self._api.patch(SPARE_POOLS, key.name, patch, key.namespace)

    def is_removed(self, run: JobRun) -> bool:
        """Return whether the job has ended and its resource was removed: it is not made again."""
        return self._removed.get(run.key) == run.lineage

    def forget(self, key: JobKey) -> None:
        """Drop what is kept of a name: nothing of it is there any more."""
        kept = (
            self._jobs,
            self._of,
            self._told,
            self._told_pools,
            self._removed,
            self._step_due_s,
            self._packed,
            self._conditions,
        )
        for of in kept:
            of.pop(key, None)
        for of_pool in [known for known in self._pool_conditions if known[0] == key]:
            del self._pool_conditions[of_pool]

    def known_job(self, key: JobKey) -> Object | None:
        return self._jobs.get(key)

    async def spare_pool(self, key: JobKey, spares: int) -> Object:
        """Return the job's own SparePool, and make it where there is none. People may change its number.

        It goes with its TrainingJob.
        """
        if key not in self._ledger.pools:
            manifest = _manifest("SparePool", key.namespace, key.name, {"job": key.name, "spares": spares})
            if owner := self._jobs.get(key):
                manifest["metadata"]["ownerReferences"] = [_owner(owner)]
            self._ledger.pools[key] = await self._make_or_find(SPARE_POOLS, manifest)
        return self._ledger.pools[key]

    async def _make_or_find(self, kind: ObjectKind, manifest: Object) -> Object:
        try:
            return await self._api.create(kind, manifest)
        except Refused as e:
            meta = manifest["metadata"]
            found = await self._api.get(kind, meta["name"], meta["namespace"]) if e.code == CONFLICT else None
            if found is None:
                raise
            return found  # somebody was faster, or it was made by a call whose answer was lost

    async def write(self, run: JobRun) -> None:
        """Write all that has changed."""
        await self.write_migrations(run)
        now_s = time.monotonic()
        nodes = {p.name: p.node for p in self._ledger.pods_of(run.key)}

        def node_of(pod: str) -> str:
            return nodes.get(pod, "")

        summary = run.core.summary(now_s)
        gathers = run.core.gathering.state if run.gathers and run.core.gathering is not None else ""
        record = write_down(run.restart, run.core.job.world_size, run.launch) if gathers and run.restart else ""
        if gathers and run.trouble:
            gathers += f"; {run.trouble}"
        holders = self._holders(run, node_of) if len(summary.named) < sum(summary.states.values()) else ""
        conditions = self._conditions_of(run, summary)
        told = job_status(
            summary, run.story, node_of, run.restarts, gathers, record, holders, run.used, conditions, run.lineage
        )
        before = self._told.get(run.key, {})
        news = {field: value for field, value in told.items() if field not in before or value != before[field]}
        if news.keys() <= COMES_FURTHER and now_s < self._step_due_s.get(run.key, 0.0):
            return
        if news and run.key in self._jobs:
            self._step_due_s[run.key] = now_s + len(self._ledger.runs) / STEP_WRITES_PER_S
            self._told[run.key] = told
            try:
                await self._status(TRAINING_JOBS, run.key.namespace, run.key.name, news)
            except BaseException:
                self._told.pop(run.key, None)
                raise
            if run.key not in self._jobs and run.core.ended is not None:
                self._removed[run.key] = run.lineage

    def _conditions_of(self, run: JobRun, summary: JobSummary) -> list[dict[str, str]]:
        kept = self._conditions.get(run.key)
        job = self._jobs.get(run.key)
        if kept is None or job is None:
            return []
        found = find_conditions(summary, job["spec"].get("spares"), run.story.finished is not None)
        return kept.as_status(found, time.time())

    def _holders(self, run: JobRun, node_of: Callable[[str], str]) -> str:
        """Return the holders of all ranks as packed text. It is packed once for as long as no rank has moved."""
        known = self._packed.get(run.key)
        if known is None or known[0] != run.core.job.holders:
            holders = dict(run.core.job.holders)
            known = self._packed[run.key] = holders, pack_holders(holders, node_of)
        return known[1]

    async def _write_events(self, run: JobRun) -> None:
        """Write the events, after the resources that they are about. An event that is refused is lost: they are a convenience."""
        job = self._jobs.get(run.key)
        kube_events = run.story.kube_events
        while kube_events:
            kube_event = kube_events[0]
            if kube_event.for_job and job is not None:
                await self._event(kube_event, "TrainingJob", run.key, run.key.name, job["metadata"]["uid"])
            if (story := run.story.numbered(kube_event.migration)) is not None and story.exists:
                story.uid = story.uid or await self._uid_of(run.key, story.name)
                if story.uid:
                    await self._event(kube_event, "Migration", run.key, story.name, story.uid)
            kube_events.pop(0)

    async def _event(self, kube_event: KubeEvent, kind: str, key: JobKey, name: str, uid: str) -> None:
        try:
            await self._api.create(EVENTS, event(kube_event, kind, key.namespace, name, uid))
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
        """Write the pool's status with its condition, where it has changed."""
        found = {ConditionType.SPARES_READY: find_spares_ready(status["warm"], status["wanted"], NO_SPARES_WANTED)}
        if (conditions := self._pool_conditions.get((key, name))) is None:
            pool = self._ledger.pools.get(JobKey(key.namespace, name)) or {}
            before = (pool.get("status") or {}).get("conditions") or ()
            conditions = self._pool_conditions[key, name] = Conditions(before)
        status = {**status, "conditions": conditions.as_status(found, time.time())}
        if self._told_pools.get(key) != (name, status):
            self._told_pools.pop(key, None)
            await self._status(SPARE_POOLS, key.namespace, name, status)
            self._told_pools[key] = name, status

    async def _write_migration(self, key: JobKey, story: MigrationStatus) -> None:
        story.changed = False
        try:
            if not story.exists:
                await self._make(key, story)
                story.exists = True
            await self._status(MIGRATIONS, key.namespace, story.name, story.status)
        except BaseException:
            story.changed = True
            raise

    async def _make(self, key: JobKey, story: MigrationStatus) -> None:
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
                for known in (self._jobs, self._told, self._of):
                    known.pop(JobKey(namespace, name), None)  # the next look makes it again
            if kind is SPARE_POOLS:
                self._ledger.pools.pop(JobKey(namespace, name), None)


def _spec(pod: Pod, options: PodAnnotations, workload_uid: str) -> Object:
    """Return a TrainingJob's spec. Fields that are None are to be absent."""
    return {
        "owner": pod.annotations.get(kube.OWNER) or None,
        "policy": options.policy,
        "fallback": list(options.fallback),
        "respawnLimit": options.respawn_limit,
        "spares": options.spares,
        "pool": options.pool or None,
        "workloadUID": workload_uid or None,
    }


def without_none(spec: Object) -> Object:
    return {name: value for name, value in spec.items() if value is not None}


def without_empty(status: Object) -> Object:
    """Return the status for a merge patch, where null takes a field away.

    An empty text must not be sent: API servers have been seen to read it as null.
    """
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


def _reference(workload: Workload) -> Object:
    return {
        "apiVersion": workload.api_version,
        "kind": workload.kind,
        "name": workload.name,
        "uid": workload.uid,
    }


def _manifest(kind: str, namespace: str, name: str, spec: Object) -> Object:
    meta: Object = {"name": name, "namespace": namespace}
    return {"apiVersion": kube.API_VERSION, "kind": kind, "metadata": meta, "spec": spec}
