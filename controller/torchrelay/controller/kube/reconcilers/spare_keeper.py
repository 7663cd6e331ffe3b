"""Makes and deletes pods: spares at the wanted number, and what migrations leave behind."""

from __future__ import annotations

import logging
import re
import time
from dataclasses import dataclass

from torchrelay.controller.kube.client.api import CLAIMS, PODS, Api, Object, Refused
from torchrelay.controller.kube.cluster.platform_policy import Allowed
from torchrelay.controller.kube.cluster.pods import JobKey, Pod, read_pod
from torchrelay.controller.kube.decide.force import Stranded, judge_stranded
from torchrelay.controller.kube.decide.leaver import DELETE, RELEASE, Leaver, judge_leaver
from torchrelay.controller.kube.decide.placement import placement
from torchrelay.controller.kube.decide.places import PodPlace, why_not_again
from torchrelay.controller.kube.decide.spares import SpareChange, SparePod, keep_spares
from torchrelay.controller.kube.jobs.ledger import Ledger
from torchrelay.controller.kube.jobs.run import JobRun
from torchrelay.controller.kube.reconcilers.clone import own_claims, spare_pod
from torchrelay.controller.kube.reconcilers.status_writer import StatusWriter
from torchrelay.controller.kube.settings import NODE_GRACE_S
from torchrelay.controller.kube.status.status_builder import pod_of
from torchrelay.protocol.errors import UserError
from torchrelay.protocol.events import SparesChanged
from torchrelay.protocol.kube.annotations import PodAnnotations, read
from torchrelay.protocol.kube.changed_by import changed_by
from torchrelay.protocol.logs.log_records import of_run

log = logging.getLogger(__name__)

COMES_BACK_S = 30.0
"""Time for a container to start again in the pod of a rank that lives elsewhere by now: after that a spare's pod is made."""
OWNER_S = 30.0
"""Time for the controller of a job's pods to make new ones, when the job begins again."""


FIRST_WAIT_S = 1.0
MAX_WAIT_S = 15.0
"""Pauses after the API server refused a pod, for example by a quota or a policy."""


@dataclass(frozen=True)
class _HeldBack:
    """Why no pod is made before `until_s`; `wait_s`: how long that is."""

    reason: str
    wait_s: float
    until_s: float


class SpareKeeper:
    """The spares. Methods raise RetryableError while the API server is away, and Refused."""

    def __init__(
        self, api: Api, ledger: Ledger, status_writer: StatusWriter, node_grace_s: float = NODE_GRACE_S
    ) -> None:
        self._api = api
        self._ledger = ledger
        self._status_writer = status_writer
        self._node_grace_s = node_grace_s
        self._freed: set[str] = set()
        self._templates: dict[JobKey, Pod] = {}
        self._said: dict[JobKey, str] = {}
        self._gathering_since_s: dict[str, float] = {}
        self._held_back: dict[JobKey, _HeldBack] = {}
        self._empty_since_s: dict[str, float] = {}
        """Since when each pod (by uid) has no process. One may come back."""

    async def tend(self, run: JobRun) -> None:
        """Look after the spares of one job once."""
        template = self._template(run.key)
        if template is None:
            return
        try:
            options = read(template.annotations)
        except UserError as e:
            self._tell(
                run.key, f"annotations of pod {template.name} are of no use, and those of its first pod count: {e}"
            )
            options = run.options
        options, bounds = self._ledger.platform.bounded(run.key.namespace, template.annotations, options)
        if bounds:
            self._tell(run.key, f"the platform's policy holds: {bounds}")
        if self._status_writer.is_removed(run):
            return
        owner = await self._status_writer.training_job(run, template, options)
        await self._clear_up(run)
        await self._free_stranded(run)
        await self._keep_spares(run, template, owner, options, bounds)

    def forget(self, key: JobKey) -> None:
        """Drop what is kept of jobs of this name: none is there, and a later one has nothing to do with it."""
        self._status_writer.forget(key)
        for kept in (self._templates, self._said, self._held_back):
            kept.pop(key, None)

    def _template(self, key: JobKey) -> Pod | None:
        """Return a worker's pod of this job, the newest that is known. It is kept when all are gone."""
        injected = [p for p in self._ledger.pods_of(key) if p.is_injected]
        workers = [p for p in injected if not p.is_spare] or ([] if key in self._templates else injected)
        if workers:
            self._templates[key] = max(workers, key=lambda p: (p.created, p.name))
        return self._templates.get(key)

    async def _clear_up(self, run: JobRun) -> None:
        while run.story.left:
            left = run.story.left[0]
            pod = self._ledger.pod_named(run.key, pod_of(left.worker))
            if pod is not None and left.worker.startswith(f"{pod.agent}."):
                restarts = run.is_launched or pod.restarts
                stay = tuple(rank for rank in run.stays_in(pod.agent) if rank != left.rank)
                verdict = judge_leaver(Leaver(pod.name, left.rank, left.planned, restarts, pod.leaves, stay))
                of_run(log, run.key).info("%s: %s: %s", run.key, verdict.action, verdict.reason)
                if verdict.action in (DELETE, RELEASE):
                    run.relay.release(pod.agent, verdict.reason)
                if verdict.action == DELETE:
                    await self._api.delete(PODS, pod.name, run.key.namespace)
            run.story.left.pop(0)

    async def _free_stranded(self, run: JobRun) -> None:
        """Delete by force pods on nodes that do not answer, if no rank is in them any more."""
        now_s = time.monotonic()
        for pod in self._ledger.pods_of(run.key):
            unready_s = self._ledger.unready_s(pod.node, now_s)
            stranded = Stranded(pod.name, pod.node, run.took_over(pod.agent), unready_s)
            verdict = judge_stranded(stranded, self._node_grace_s)
            if verdict.force and pod.uid not in self._freed:
                of_run(log, run.key).warning("%s: deleted by force: %s", run.key, verdict.reason)
                await self._api.delete(PODS, pod.name, run.key.namespace, grace_s=0)
                self._freed.add(pod.uid)

    async def _keep_spares(
        self, run: JobRun, template: Pod, owner: Object, options: PodAnnotations, bounds: str
    ) -> None:
        pool = await self._pool(run.key, options)
        wanted = min(int(pool["spec"]["spares"]), self._ledger.platform.of(run.key.namespace).most_spares_per_job)
        spares = [p for p in self._ledger.pods_of(run.key) if p.is_spare]
        facts = [
            SparePod(
                p.name,
                p.is_over or (not p.may_serve and not run.took_over(p.agent)),
                p.leaves,
                run.took_over(p.agent),
                run.is_warm(p.agent),
                self._ledger.why_not(p.node),
                run.is_here(p.agent) and not run.living_in(p.agent),
            )
            for p in spares
        ]
        serving = [p for p in self._ledger.pods_of(run.key) if not p.is_spare and p.may_serve]
        ranked = [p for p in self._ledger.pods_of(run.key) if not p.is_spare or run.took_over(p.agent)]
        target = wanted
        parked = [p.name for p in ranked if self._is_parked(run, p)]
        if run.gathers:
            target = self._wanted_to_begin(run, serving)
            parked = []
            self._release_ended(run)
        else:
            run.core.job.spares_wanted = wanted
        coming = (not (p.is_over or p.leaves or run.is_here(p.agent) or self._ledger.why_not(p.node)) for p in spares)
        run.pods_seen({p.agent: self._why_not_again(run, p) for p in self._ledger.pods_of(run.key)}, sum(coming))
        can_be_protected = run.core.job.protection != "off"
        all_known = not run.core.entrance.is_taking_over
        change = keep_spares(facts, target, run.runs, can_be_protected, parked, all_known)
        if change.create or change.delete:
            self._tell(run.key, f"{change.create} spares are made, {len(change.delete)} deleted: {change.reason}")
        await self._carry_out(run, template, owner, change, pool)
        run.trouble = self._trouble(run.key, spares) or bounds
        free = [f for f in facts if not f.over and not f.took_over and not f.leaves]
        warm = sum(f.warm for f in free)
        made = 0 if run.gathers or run.key in self._held_back else change.create
        run.tell_asked(int(pool["spec"]["spares"]), changed_by(pool))
        run.tell_spares(SparesChanged(wanted, warm, len(free) - warm + made, run.trouble))
        if "name" in pool["metadata"]:
            status = {"wanted": wanted, "ready": len(free), "warm": warm, "trouble": run.trouble}
            await self._status_writer.pool_status(run.key, pool["metadata"]["name"], status)

    def _why_not_again(self, run: JobRun, pod: Pod) -> str:
        launched = run.is_launched and pod.may_serve
        return why_not_again(PodPlace(pod.leaves, pod.is_over, pod.restarts, launched, self._ledger.why_not(pod.node)))

    def _is_parked(self, run: JobRun, pod: Pod) -> bool:
        """Return whether a pod that had a rank is a spare by now, or is about to be one, since its containers start again."""
        if not pod.is_injected or pod.leaves or not run.is_attached(pod.agent) or self._ledger.why_not(pod.node):
            return False
        if there := run.living_in(pod.agent):
            self._empty_since_s.pop(pod.uid, None)
            return sum(w.is_spare for w in there) >= run.processes
        empty_s = time.monotonic() - self._empty_since_s.setdefault(pod.uid, time.monotonic())
        return empty_s < COMES_BACK_S and not self._why_not_again(run, pod)

    def _trouble(self, key: JobKey, spares: list[Pod]) -> str:
        """Return why spares that are wanted do not come, as the API server and the scheduler say it; empty if nothing is known."""
        if (held_back := self._held_back.get(key)) is not None:
            return held_back.reason
        return next((p.unscheduled for p in spares if p.unscheduled), "")

    def _wanted_to_begin(self, run: JobRun, serving: list[Pod]) -> int:
        """Return how many pods are to be made for a job that begins again, for want of those that its owner makes."""
        missing = max(0, run.core.job.world_size // run.processes - len(serving))
        since_s = self._gathering_since_s.setdefault(run.id, time.monotonic())
        owned = any(p.has_controller for p in self._ledger.pods_of(run.key) if not p.is_spare)
        return missing if not owned or time.monotonic() - since_s >= OWNER_S else 0

    def _release_ended(self, run: JobRun) -> None:
        """Let agents end that are beside training containers which do not start again."""
        for pod in self._ledger.pods_of(run.key):
            if not pod.may_serve and not pod.is_over and not run.is_here(pod.agent):
                run.relay.release(pod.agent, f"pod {pod.name} does not start again")

    async def _pool(self, key: JobKey, options: PodAnnotations) -> Object:
        """Return the pool that says how many spares this job is to have."""
        if not options.pool:
            return await self._status_writer.spare_pool(key, options.spares or 0)
        pool = self._ledger.pools.get(JobKey(key.namespace, options.pool))
        if pool is None:
            self._tell(key, f"there is no SparePool {options.pool}, from which its spares were to come")
            return {"metadata": {}, "spec": {"spares": 0}}
        return pool

    async def _carry_out(self, run: JobRun, template: Pod, owner: Object, change: SpareChange, pool: Object) -> None:
        for name in change.delete:
            await self._api.delete(PODS, name, run.key.namespace)
        held_back = self._held_back.get(run.key)
        if change.create and held_back is not None and time.monotonic() < held_back.until_s:
            return
        try:
            await self._create(run, template, owner, change.create, pool)
        except (Refused, UserError) as e:
            wait_s = min(2 * held_back.wait_s, MAX_WAIT_S) if held_back is not None else FIRST_WAIT_S
            self._held_back[run.key] = _HeldBack(_unnamed(str(e)), wait_s, time.monotonic() + wait_s)
            self._tell(run.key, f"spares cannot be made: {_unnamed(str(e))}")
        else:
            self._held_back.pop(run.key, None)

    async def _create(self, run: JobRun, template: Pod, owner: Object, count: int, pool: Object) -> None:
        """Make spares, as many as the platform's policy allows. Raises UserError where it does not allow all of them."""
        namespace = run.key.namespace
        platform = self._ledger.platform
        allowed = Allowed(count, "")
        # Pods that a job needs to begin again are none that stand by.
        if count and not run.gathers and platform.has_budget(namespace):
            allowed = platform.allowed(namespace, count, *self._ledger.spares_of_all(namespace))
        topology = pool["spec"].get("topologyKeys") or ()
        priority_class = pool["spec"].get("priorityClassName") or ""
        for _ in range(allowed.pods):
            terms, reasons = placement(
                run.key.name, self._ledger.labels_of(template.node), self._ledger.barred_nodes(), topology
            )
            of_run(log, run.key).info("%s: a spare is to be %s", run.key, "; ".join(reasons))
            claims = await self._claims(run.key, template)
            made = await self._api.create(PODS, spare_pod(template.manifest, owner, terms, priority_class, claims))
            pod = read_pod(made)
            if pod is not None:
                self._ledger.pods[pod.uid] = pod  # the mirror may be late, and one spare is enough
        if allowed.reason:
            raise UserError(allowed.reason)

    async def _claims(self, key: JobKey, template: Pod) -> dict[str, Object]:
        """Return the specs of the claims that are the copied pod's own. One that is gone is left out.

        The spare names it as it was, and the scheduler says that it is missing.
        """
        found = {}
        for name in own_claims(template.manifest).values():
            claim = await self._api.get(CLAIMS, name, key.namespace)
            if claim is not None:
                found[name] = claim["spec"]
        return found

    def _tell(self, key: JobKey, text: str) -> None:
        if self._said.get(key) != text:
            self._said[key] = text
            of_run(log, key).info("%s: %s", key, text)


def _unnamed(refusal: str) -> str:
    """Return the refusal without the name that the API server has made up for a pod that is not there.

    So the same refusal is said once.
    """
    return re.sub(r'pods "[^"]*"', "pods", refusal)
