"""Migration resources that people create: each is a planned migration or a checkpoint, begun as soon as it can be, or refused with
the reason."""

from __future__ import annotations

import logging
import time
from typing import Any

from torchrelay.controller.kube.cluster.pods import JobKey
from torchrelay.controller.kube.jobs.ledger import Ledger
from torchrelay.controller.kube.jobs.run import JobRun
from torchrelay.protocol.kube import kube_names as kube
from torchrelay.protocol.words.phases import PLANNED, SAVE

log = logging.getLogger(__name__)


class MigrationRequests:
    """Takes what the mirror of Migrations sees; `tick` begins what can begin."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self._open: dict[str, dict[str, Any]] = {}
        self._begun: set[str] = set()
        self._orphans: dict[str, dict[str, Any]] = {}
        """Migrations that a controller has made and that are not over: this controller, or one that is no more."""
        self.waiting: dict[str, str] = {}
        """Name of a Migration -> why it has not begun."""

    def changed(self, migration: dict[str, Any], deleted: bool) -> None:
        uid = migration["metadata"]["uid"]
        status = migration.get("status") or {}
        ours = (migration["metadata"].get("annotations") or {}).get(kube.ORIGIN) == kube.BY_CONTROLLER
        if deleted or uid in self._begun or status.get("outcome"):
            self._open.pop(uid, None)
            self._orphans.pop(uid, None)
        elif ours:
            if status.get("startedAt"):
                self._orphans[uid] = migration
        else:
            self._open[uid] = migration  # also one that a controller had begun which is no more: it is begun anew

    def tick(self) -> None:
        for found, work in ((self._open, self._begin_one), (self._orphans, self._close)):
            for uid, migration in list(found.items()):
                run = None
                try:
                    run = self._ledger.runs.get(JobKey(migration["metadata"]["namespace"], migration["spec"]["job"]))
                    work(uid, migration, run)
                except Exception as e:  # whatever it is, the next job must not notice
                    if run is not None:
                        run.failed(e)
                    else:
                        found.pop(uid, None)
                        log.exception("a Migration is left out: %s: %s", type(e).__name__, e)

    def _begin_one(self, uid: str, migration: dict[str, Any], run: JobRun | None) -> None:
        meta = migration["metadata"]
        spec = migration["spec"]
        if run is None:
            self.waiting[meta["name"]] = f"there is no job {spec['job']} that runs"
        elif self._begin(run, meta, spec):
            self._begun.add(uid)
            del self._open[uid]

    def _close(self, uid: str, migration: dict[str, Any], run: JobRun | None) -> None:
        """Close a Migration that an earlier controller led: it has become part of what this controller found."""
        if run is None or not run.settled:
            return
        del self._orphans[uid]
        name = migration["metadata"]["name"]
        if not run.story.knows(name):
            status = migration.get("status") or {}
            run.story.orphaned(name, status, run.core.job.holders, time.time())

    def _begin(self, run: JobRun, meta: dict[str, Any], spec: dict[str, Any]) -> bool:
        """Begin a Migration, or refuse it. Return whether it is dealt with."""
        name = meta["name"]
        by = (meta.get("annotations") or {}).get(kube.REQUESTED_BY, "")
        reason = spec.get("reason") or f"Migration {name} asks for it"
        ranks = [] if spec.get("save") else ranks_meant(run, self._ledger, spec)
        if isinstance(ranks, str):
            run.story.refuse(name, PLANNED, ranks, time.time())
            return True
        kind = PLANNED if ranks else SAVE
        reply = run.migrate(ranks[0], reason, by) if ranks else run.save(reason, by)
        if reply.accepted:
            run.story.adopt(reply.migration, name)
            for rank in ranks[1:]:
                run.relay.want(rank, f"{reason} (its pod is left, after rank {ranks[0]})")
        elif reply.again:
            self.waiting[name] = reply.message
            run.story.wait(name, kind, reply.message)
            return False
        else:
            run.story.refuse(name, kind, reply.message, time.time())
        self.waiting.pop(name, None)
        return True


def ranks_meant(run: JobRun, ledger: Ledger, spec: dict[str, Any]) -> list[int] | str:
    """Return the rank that a Migration's spec names, or all ranks of the pod that it names; or the reason that there is none."""
    if (rank := spec.get("rank")) is not None:
        return [int(rank)]
    if pod_name := spec.get("pod"):
        pod = ledger.pod_named(run.key, pod_name)
        found = run.ranks_in(pod.agent) if pod is not None else []
        return found or f"no rank of {run.key.name} lives in a pod {pod_name}"
    node = spec.get("node", "")
    by_pod = [ranks for p in ledger.pods_of(run.key) if p.node == node and (ranks := run.ranks_in(p.agent))]
    if len(by_pod) == 1:
        return by_pod[0]
    if not by_pod:
        return f"no rank of {run.key.name} lives on node {node}"
    ranks = sorted(rank for of_pod in by_pod for rank in of_pod)
    return f"ranks {', '.join(map(str, ranks))} live on node {node}: one Migration moves one rank; name it"
