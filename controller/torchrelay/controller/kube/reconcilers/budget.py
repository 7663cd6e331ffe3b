"""Holds off evictions by a PodDisruptionBudget for each job, as long as `decide.eviction` says so.

It belongs to the role that the installation gives the controller, so that it goes when torchrelay is uninstalled. Otherwise no
process would be there to take it away, and it would block each drain.
"""

from __future__ import annotations

import logging
import time

from torchrelay.controller.kube.client.api import (
    ALL,
    BUDGETS,
    BUDGETS_BETA,
    CLUSTER_ROLES,
    CONFLICT,
    NOT_FOUND,
    ROLES,
    Api,
    Object,
    ObjectKind,
    Refused,
)
from torchrelay.controller.kube.cluster.pods import JobKey
from torchrelay.controller.kube.decide.eviction import EvictionSituation, judge_eviction
from torchrelay.controller.kube.jobs.run import JobRun
from torchrelay.controller.kube.settings import ClusterSettings
from torchrelay.protocol.kube import kube_names as kube
from torchrelay.protocol.kube.object_names import beginning
from torchrelay.protocol.logs.log_records import of_run

log = logging.getLogger(__name__)

ALL_OF_THEM = 1_000_000
"""More healthy pods than there are, so that none may be evicted. A budget in terms of what may be missing needs an owner with a

scale, which bare pods do not have.
"""


class Budgets:
    """The budgets. Methods raise RetryableError while the API server is away, and Refused."""

    def __init__(self, api: Api, settings: ClusterSettings) -> None:
        self._api = api
        self._settings = settings
        self._held: dict[JobKey, bool] = {}
        self._since_s: dict[JobKey, float] = {}
        self._kind: ObjectKind = BUDGETS
        self._role: Object | None = None

    async def tend(self, run: JobRun, owner: Object | None, leaving: bool) -> None:
        """Make or delete the job's budget.

        `owner`: its TrainingJob, if there is one. `leaving`: whether a rank has to leave its node.
        """
        now_s = time.monotonic()
        since_s = self._since_s.setdefault(run.key, now_s) if leaving else now_s
        if not leaving:
            self._since_s.pop(run.key, None)
        job = run.core.job
        movable = job.protection == "on" and run.options.policy != kube.POLICY_OBSERVE
        spares = job.spares
        movers = len(spares) + job.most_to_come(spares)
        verdict = judge_eviction(
            EvictionSituation(run.runs, movable, movers, now_s - since_s, run.options.spare_wait_s)
        )
        if self._held.get(run.key) is verdict.hold_off or (verdict.hold_off and owner is None):
            return
        of_run(log, run.key).info(
            "%s: evictions are %s: %s", run.key, "held off" if verdict.hold_off else "let through", verdict.reason
        )
        if verdict.hold_off:
            assert owner is not None
            run.holds_off = True
            reference = await self._installation() or _reference("TrainingJob", kube.API_VERSION, owner)
            await self._make(run.key, reference)
        else:
            await self._delete(run.key)
            run.holds_off = False
        self._held[run.key] = verdict.hold_off

    async def _make(self, key: JobKey, owner: Object) -> None:
        try:
            await self._api.create(self._kind, _manifest(self._kind, key, owner))
        except Refused as e:
            if e.code == NOT_FOUND and self._kind is BUDGETS:
                self._kind = BUDGETS_BETA  # before Kubernetes 1.21
                await self._make(key, owner)
            elif e.code == CONFLICT:  # another controller's, perhaps of an installation that is no more
                await self._delete(key)
                await self._api.create(self._kind, _manifest(self._kind, key, owner))
            else:
                raise

    async def _delete(self, key: JobKey) -> None:
        for kind in (BUDGETS, BUDGETS_BETA):  # another controller may have made it, and one of them is not known
            await self._api.delete(kind, _name(key), key.namespace)

    async def _installation(self) -> Object | None:
        """Return what stands for the installation as an owner.

        None where it has been set up by other manifests than torchrelay's.
        """
        if self._role is None:
            watched = self._settings.watched
            kind, namespace = (CLUSTER_ROLES, None) if watched == ALL else (ROLES, watched)
            try:
                self._role = await self._api.get(kind, self._settings.role, namespace)
            except Refused as e:
                log.warning("evictions are still held off when torchrelay is uninstalled: %s", e)
            if self._role is not None:
                self._role = _reference(kind.name, "rbac.authorization.k8s.io/v1", self._role)
        return self._role


def _name(key: JobKey) -> str:
    return beginning(f"torchrelay-{key.name}", 63)


def _reference(kind: str, version: str, owner: Object) -> Object:
    meta = owner["metadata"]
    return {"apiVersion": version, "kind": kind, "name": meta["name"], "uid": meta["uid"]}


def _manifest(kind: ObjectKind, key: JobKey, owner: Object) -> Object:
    meta = {"name": _name(key), "namespace": key.namespace, "ownerReferences": [owner]}
    spec = {"minAvailable": ALL_OF_THEM, "selector": {"matchLabels": {kube.JOB: key.name}}}
    return {"apiVersion": kind.version, "kind": kind.name, "metadata": meta, "spec": spec}
