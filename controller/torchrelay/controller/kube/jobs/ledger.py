"""The jobs that there are: finds the run that an agent belongs to, or begins one."""

from __future__ import annotations

import logging
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping, MutableMapping, Sequence
from functools import partial
from typing import Any

from torchrelay.controller.kube.cluster.nodes import NodeBook, is_ready, read_node, slim
from torchrelay.controller.kube.cluster.platform_policy import PlatformPolicy
from torchrelay.controller.kube.cluster.pod_book import PodBook
from torchrelay.controller.kube.cluster.pods import JobKey, Pod
from torchrelay.controller.kube.cluster.quarantines import Quarantined, Quarantines, read_quarantine
from torchrelay.controller.kube.decide.launcher import (
    BEGINS_AGAIN,
    NONE,
    OVER,
    STARTS,
    TAKEN_OVER,
    TRAINS,
    UNPROTECTED,
    judge_launcher,
)
from torchrelay.controller.kube.jobs.remembered import Remembered
from torchrelay.controller.kube.jobs.run import JobRun
from torchrelay.controller.metrics.tally import JobTally, Totals
from torchrelay.controller.restart.job_restart import RestartPlan
from torchrelay.protocol.errors import RefusedError, RetryableError, UserError
from torchrelay.protocol.health.node_facts import NodeFacts
from torchrelay.protocol.health.policy import HealthPolicy
from torchrelay.protocol.health.policy_file import default_policy
from torchrelay.protocol.kube.annotations import PodAnnotations, read
from torchrelay.protocol.messages import AgentHello, JobEvent, LaunchReply
from torchrelay.protocol.names import NO_RANK
from torchrelay.protocol.security.pod_tls import PodIdentity
from torchrelay.protocol.transport.incoming import MOST_RANKS

log = logging.getLogger(__name__)

MOST_DIGITS = 12
"""The most digits of a number that a process claims: to read a very long one takes long."""
MOST_RANKS_OF_A_POD = 256
"""As many processes as are thought possible in one pod. So the pods that are there limit what a job may cost."""


class Ledger:
    """All jobs. `find(identity)`: returns the pod from the API, for one that the mirror does not have yet.

    `remember(key)`: returns what the job's resource says of it, for a job that another controller has begun.
    """

    def __init__(
        self,
        find: Callable[[PodIdentity], Awaitable[Pod | None]],
        remember: Callable[[JobKey], Awaitable[Remembered]],
        health: HealthPolicy | None = None,
        wall_s: Callable[[], float] = time.time,
        platform: PlatformPolicy | None = None,
    ) -> None:
        self._find = find
        self._remember = remember
        self.platform = platform if platform is not None else PlatformPolicy()
        self._health = health if health is not None else default_policy()
        self.pods = PodBook()
        """All pods of torchrelay's jobs, by uid."""
        self.runs: dict[JobKey, JobRun] = {}
        self._nodes: dict[str, dict[str, Any]] = {}
        self._facts: dict[str, NodeFacts] = {}
        self._unready_since_s: dict[str, float] = {}
        self._quarantines = Quarantines()
        self._wall_s = wall_s
        self._book = NodeBook()
        self.pools: MutableMapping[JobKey, dict[str, Any]] = {}
        """SparePools by namespace and name, as the mirror has them."""
        self.totals = Totals()
        """The counts of all jobs."""
        self.listens: Callable[[JobRun, JobEvent], None] = lambda run, event: None
        """Called with each event of each job."""
        self.over: list[JobRun] = []
        """Runs that are over and whose place another one has taken."""

    async def run_for(self, identity: PodIdentity, hello: AgentHello) -> JobRun:
        """Return the run of the pod's job, and begin it if needed.

        Raises RefusedError for a pod that takes part in no job, RetryableError for a spare that comes before any rank, and for a
        rank of a job that has too few pods by now.
        """
        pod = await self._pod_of(identity)
        run = await self._run_of(pod, hello)
        run.core.job.machines[pod.agent] = pod.node
        return run

    async def _run_of(self, pod: Pod, hello: AgentHello) -> JobRun:
        run = self.runs.get(pod.key)
        if run is not None and (run.core.ended is None or hello.node in run.core.job.nodes or run.is_late(pod)):
            return run
        ranks = (w.launch for w in hello.workers if w.rank != NO_RANK)
        launch = next((told for told in ranks if told.get("WORLD_SIZE", "").isdecimal()), None)
        if launch is None:
            raise RetryableError(f"job {pod.key} has not begun")
        there = sum(not p.is_over for p in self.pods_of(pod.key))
        size = claimed_size(launch, max(1, there))  # the mirror may not have its own yet
        if run is not None:
            self.over.append(run)
        trains = any(w.generation >= 0 for w in hello.workers)
        before = await self._remember(pod.key) if trains and run is None else Remembered()
        if (meanwhile := self.runs.get(pod.key)) is not None and meanwhile is not run:
            return meanwhile  # another agent's stream has made it
        agents = self._agents(pod)
        is_same = any(worker.rpartition(".")[0] in agents for worker in before.holders.values())
        options = self._options_of(pod)
        lineage = before.lineage if is_same else ""
        run = JobRun(
            pod.key, size, launch, options, self._health, before.restarts, None, before.losses, before.used, lineage
        )
        run.follows = pod.key in self.runs
        run.trained_before = trains
        self.enter(run)
        run.core.entrance.remember(before.holders)
        run.core.job.machines.update(before.machines)
        return run

    def _agents(self, pod: Pod) -> set[str]:
        """Return the agents of all pods of the pod's job."""
        return {pod.agent, *(p.agent for p in self.pods_of(pod.key))}

    async def _pod_of(self, identity: PodIdentity) -> Pod:
        """Return the pod.

        One that the mirror has not seen yet is read, but not added: it may be deleted before the mirror sees it.
        """
        if self.pods.is_gone(identity.uid):
            raise RefusedError(f"the pod is deleted: {identity.namespace}/{identity.pod}")
        pod = self.pods.get(identity.uid) or await self._find(identity)
        if (
            pod is None
            or pod.uid != identity.uid
            or pod.key.namespace != identity.namespace
            or pod.name != identity.pod
        ):
            raise RefusedError(f"there is no such pod of a job: {identity.namespace}/{identity.pod}")
        return pod

    async def may_launch(self, identity: PodIdentity) -> LaunchReply:
        """Answer a launcher in a pod. Raises as `run_for` does.

        Raises RetryableError too where an earlier controller knew more than this one does yet.
        """
        pod = await self._pod_of(identity)
        run = self.runs.get(pod.key)
        if run is None:
            holders = (await self._remember(pod.key)).holders
            there = {p.agent for p in self.pods_of(pod.key) if not p.is_over and p.uid != pod.uid}
            if any(worker.rpartition(".")[0] in there for worker in holders.values()):
                raise RetryableError(f"job {pod.key} trains, and none of its agents has come yet")
        late = run is not None and run.is_late(pod)
        return judge_launcher(OVER if late else _state_of(run), pod.is_spare)

    def _options_of(self, pod: Pod) -> PodAnnotations:
        """Return the wishes in the pod's annotations, within the platform's limits.

        The webhook has let only correct ones through. Where the webhook was away, the defaults hold.
        """
        try:
            options = read(pod.annotations)
        except UserError:
            options = PodAnnotations()
        return self.platform.bounded(pod.key.namespace, pod.annotations, options).options

    def spares_of_all(self, namespace: str) -> tuple[int, int]:
        """Return how many spare pods that have no rank the namespace has, and all namespaces together."""
        spares = [p for p in self.pods.values() if p.is_spare and not p.is_over and not p.leaves]
        free = [p for p in spares if (run := self.runs.get(p.key)) is None or not run.took_over(p.agent)]
        return sum(p.key.namespace == namespace for p in free), len(free)

    def enter(self, run: JobRun) -> None:
        """Make the run the job of its name from now on."""
        run.tally = JobTally(self.totals)
        run.there = lambda: self.pods_of(run.key)
        run.listens = lambda event: self.listens(run, event)
        run.core.health.why_not_quarantined = lambda node: self._why_not_quarantined(run, node)
        self.runs[run.key] = run

    def _why_not_quarantined(self, run: JobRun, node: str) -> str:
        """Return why the node must not be put into quarantine; empty if it may. `node`: as the job knows it.

        Machines count once, however many jobs and resources bar them.
        """
        barred = set(self._quarantines.barred_nodes())
        for other in self.runs.values():
            job = other.core.job
            barred |= {job.machines.get(subject, subject) for subject in job.quarantine if subject in job.nodes}
        return self.platform.why_not_quarantined(run.core.job.machines.get(node, node), barred)

    def begin_again(self, run: JobRun, restart: RestartPlan, reason: str, rung: str) -> JobRun:
        """Begin the job of `run`, which has fallen, in new processes."""
        run.relay.restart_workers(reason)
        steps = (*run.restarts, restart.step)
        size = run.core.job.world_size
        losses = run.losses.known
        new = JobRun(
            run.key, size, run.launch, run.options, self._health, steps, restart, losses, run.used, run.lineage
        )
        new.story.go_on(run.story)
        new.told_of = run.told_of
        new.told_as = run.told_as
        self.over.append(run)
        self.enter(new)
        new.tell_restart(rung, reason, max(run.core.job.boundary - restart.step, 0) if restart.step >= 0 else 0)
        return new

    def take_up(self, key: JobKey, before: Remembered, migrations: Sequence[dict[str, Any]]) -> None:
        """Take up a job that was to begin again when the controller before this one ended, if pods of it are there.

        `migrations`: of all jobs.
        """
        pods = self.pods_of(key)
        if before.restart is not None and pods and key not in self.runs:
            options = self._options_of(next((p for p in pods if not p.is_spare), pods[0]))
            size = before.world_size
            steps = before.restarts
            plan = before.restart
            losses = before.losses
            run = JobRun(
                key, size, before.launch, options, self._health, steps, plan, losses, before.used, before.lineage
            )
            self.enter(run)
            run.story.recall(key.namespace, migrations)

    def knows(self, run: JobRun) -> bool:
        """Return whether the run is still to be looked after."""
        return self.runs.get(run.key) is run or run in self.over

    def drop_old(self) -> None:
        """Drop runs that are over, once everything is written and their pods are gone, and quarantines whose time is over."""
        self._note_all(self._quarantines.drop_over(self._wall_s()))
        for run in list(self.over):
            run.contained(partial(self._drop_told, run))
        for run in list(self.runs.values()):
            run.contained(partial(self._drop_gone, run))

    def _drop_told(self, run: JobRun) -> None:
        if not (run.story.kube_events or any(m.changed for m in run.story.migrations)):
            self.over.remove(run)

    def _drop_gone(self, run: JobRun) -> None:
        told = not run.holds_off and not any(m.changed for m in run.story.migrations)
        if run.is_over and not self.pods_of(run.key) and told:
            del self.runs[run.key]

    def node_changed(self, manifest: dict[str, Any], deleted: bool) -> None:
        name = manifest["metadata"]["name"]
        if deleted:
            self._nodes.pop(name, None)
            self._facts.pop(name, None)
            self._book.forget(name)
            self._quarantines.forget(name)
        else:
            self._nodes[name] = slim(manifest)
            self._note(name)
        if deleted or is_ready(manifest):
            self._unready_since_s.pop(name, None)
        else:
            self._unready_since_s.setdefault(name, time.monotonic())

    def quarantine_changed(self, quarantine: dict[str, Any], deleted: bool) -> None:
        name = quarantine["metadata"]["name"]
        if deleted:
            concerned = self._quarantines.remove(name)
        else:
            concerned = self._quarantines.put(name, read_quarantine(quarantine), self._wall_s())
        self._note_all(concerned)

    def pool_changed(self, pool: dict[str, Any], deleted: bool) -> None:
        meta = pool["metadata"]
        key = JobKey(meta["namespace"], meta["name"])
        if deleted:
            self.pools.pop(key, None)
        else:
            self.pools[key] = pool

    def _note_all(self, nodes: Iterable[str]) -> None:
        for node in nodes:
            try:
                self._note(node)
            except Exception as e:  # whatever it is, other nodes must not notice
                log.exception("what holds of node %s is not noted: %s: %s", node, type(e).__name__, e)

    def _note(self, node: str) -> None:
        if (manifest := self._nodes.get(node)) is not None:
            if self.platform.is_untouched(self.labels_of(node)):
                manifest = {"metadata": manifest["metadata"]}  # what people put into quarantine by name still counts
            facts = self._facts[node] = read_node(
                manifest, self._quarantines.notices(node), self._quarantines.ended(node)
            )
            self._book.note(facts, time.monotonic())

    def facts(self, node: str) -> NodeFacts | None:
        """Return the facts of a node; None if it is not known. It is the same object as long as nothing has changed."""
        return self._facts.get(node)

    def take_policy(self, policy: HealthPolicy) -> None:
        """Use another policy from now on, for jobs that run too."""
        self._health = policy
        for run in list(self.runs.values()):
            run.contained(partial(run.take_policy, policy))

    def why_not(self, node: str) -> str:
        """Return why nothing should be on the node, by the health policy; empty if nothing speaks against it."""
        return self._book.why_leave(node, self._health, time.monotonic())

    def has_to_leave(self, run: JobRun) -> bool:
        """Return whether some rank of the job must not stay where it is."""
        leaving = [p for p in self.pods_of(run.key) if p.leaves or self.why_not(p.node)]
        return any(run.ranks_in(p.agent) for p in leaving)

    def unready_s(self, node: str, now_s: float) -> float:
        """Return how long the node has been seen not ready; 0 if it is ready."""
        since_s = self._unready_since_s.get(node)
        return max(now_s - since_s, 0.001) if since_s is not None else 0.0

    def barred_nodes(self) -> list[str]:
        return self._quarantines.barred_nodes()

    def quarantines(self) -> dict[str, Quarantined]:
        """Return the quarantines that hold, by the names of their resources."""
        return self._quarantines.all()

    def labels_of(self, node: str) -> dict[str, str]:
        manifest = self._nodes.get(node) or {"metadata": {}}
        return manifest["metadata"].get("labels") or {}

    def pods_of(self, key: JobKey) -> list[Pod]:
        return self.pods.of(key)

    def pod_named(self, key: JobKey, name: str) -> Pod | None:
        return next((p for p in self.pods_of(key) if p.name == name), None)


def _state_of(run: JobRun | None) -> str:
    if run is None or run.core.ended is not None:
        return NONE
    if run.gathers or run.core.fallen is not None:
        return BEGINS_AGAIN
    if run.core.job.protection == "pending":
        return TAKEN_OVER if run.core.entrance.is_taking_over else STARTS
    return TRAINS if run.core.job.protection == "on" else UNPROTECTED


def claimed_size(launch: Mapping[str, str], pods: int) -> int:
    """Return the world size that a launcher has told a process. `pods`: how many the job has now.

    Raises RefusedError for a size that no job has, RetryableError for one that these pods cannot have: the others may not have
    been made yet.
    """
    claimed = launch["WORLD_SIZE"]
    if len(claimed) > MOST_DIGITS or not 1 <= int(claimed) <= MOST_RANKS:
        raise RefusedError(f"a job of {claimed[:20]} ranks is none: at most {MOST_RANKS} are looked after")
    if int(claimed) > (most := MOST_RANKS_OF_A_POD * pods):
        raise RetryableError(
            f"it claims {claimed} ranks, and {pods} pods of its job are there, which could have {most}; it is looked after once "
            "enough of them have been made"
        )
    return int(claimed)
