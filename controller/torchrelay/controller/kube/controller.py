"""The controller of a cluster: mirrors pods and resources, serves agents, and looks after each job in turn."""

from __future__ import annotations

import asyncio
import logging
import time
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from pathlib import Path
from typing import Any

from lightkube import operators

from torchrelay.controller.health.policy_watch import PolicyWatch
from torchrelay.controller.kube.address import Address
from torchrelay.controller.kube.client.api import (
    MIGRATIONS,
    NODES,
    PODS,
    QUARANTINES,
    SPARE_POOLS,
    TRAINING_JOBS,
    Api,
    Object,
    Refused,
)
from torchrelay.controller.kube.client.informer import Informer, log_failed
from torchrelay.controller.kube.cluster.platform_policy import read_platform_policy
from torchrelay.controller.kube.cluster.pods import JobKey, Pod, job_of, read_pod
from torchrelay.controller.kube.enrolment.enrolment_limits import MAX_AT_ONCE, MAX_MESSAGE_BYTES
from torchrelay.controller.kube.enrolment.identity import Enrolment
from torchrelay.controller.kube.jobs.ledger import Ledger
from torchrelay.controller.kube.jobs.node_watch import NodeWatch
from torchrelay.controller.kube.jobs.remembered import Remembered, recall
from torchrelay.controller.kube.jobs.router import Router
from torchrelay.controller.kube.jobs.run import JobRun
from torchrelay.controller.kube.jobs.tender import AWAY_S, LOOK_S, JobTender
from torchrelay.controller.kube.pulse import Pulse
from torchrelay.controller.kube.reconcilers.budget import Budgets
from torchrelay.controller.kube.reconcilers.expiry import Expiry
from torchrelay.controller.kube.reconcilers.fallback import Fallback
from torchrelay.controller.kube.reconcilers.migration_requests import MigrationRequests
from torchrelay.controller.kube.reconcilers.quarantine_status import QuarantineStatus
from torchrelay.controller.kube.reconcilers.spare_keeper import SpareKeeper
from torchrelay.controller.kube.reconcilers.status_writer import StatusWriter
from torchrelay.controller.kube.settings import ClusterSettings
from torchrelay.protocol import relay_pb2_grpc
from torchrelay.protocol.errors import FatalError, RetryableError, UserError
from torchrelay.protocol.health.policy_file import read_policy
from torchrelay.protocol.kube import kube_names as kube
from torchrelay.protocol.machine.pause import Pause
from torchrelay.protocol.security.pod_tls import PodIdentity
from torchrelay.protocol.security.tls import Credentials, make_server
from torchrelay.protocol.transport.telling import TELL_S, pace

log = logging.getLogger(__name__)

STOP_S = 1.0
PACE_STEP = 0.2
"""Agents are not told of each one that comes: only where the pace would change by so much."""


class Controller:
    """The controller. `pulse` is told that the loop moves."""

    def __init__(self, api: Api, settings: ClusterSettings, authority: Credentials, pulse: Pulse) -> None:
        self._api = api
        self._settings = settings
        self._authority = authority
        health = read_policy(settings.health_policy, settings.health_observe)
        platform = read_platform_policy(settings.platform_policy)
        self._ledger = Ledger(self._find, self._remember, health, platform=platform)
        self._status_writer = StatusWriter(api, self._ledger)
        self._keeper = SpareKeeper(api, self._ledger, self._status_writer, settings.node_grace_s)
        self._migration_requests = MigrationRequests(self._ledger)
        self._budgets = Budgets(api, settings)
        self._fallback = Fallback(self._ledger)
        self._expiry = Expiry(api, self._ledger, settings.ttl_after_finished_s)
        self._quarantine_status = QuarantineStatus(api, self._ledger)
        self._address = Address(api, settings)
        self._tender = JobTender(self._ledger, self._look, self._keeper.forget)
        self._pulse = pulse
        self._serves = False
        self._pace_s = TELL_S
        self._pause = Pause()
        self._said: dict[str, str] = {}

    @property
    def ledger(self) -> Ledger:
        """The jobs that there are."""
        return self._ledger

    async def run(self) -> None:
        """Run until cancelled. Raises UserError for a port that is taken."""
        labels: dict[str, Any] = {kube.JOB: operators.exists()}
        watched = self._settings.watched
        failed = self._object_failed
        pods = Informer(self._api, PODS, self._pod_changed, watched, labels, failed)
        migrations = Informer(self._api, MIGRATIONS, self._migration_requests.changed, watched, failed=failed)
        nodes = Informer(self._api, NODES, self._ledger.node_changed, failed=failed)
        self._node_watch = NodeWatch(self._ledger, nodes)
        quarantines = Informer(self._api, QUARANTINES, self._quarantine_changed, failed=failed)
        pools = Informer(self._api, SPARE_POOLS, self._ledger.pool_changed, watched, failed=failed)
        jobs = Informer(self._api, TRAINING_JOBS, self._expiry.changed, watched, failed=failed)
        informers = (pods, migrations, nodes, quarantines, pools, jobs)
        tasks = [asyncio.create_task(informer.run()) for informer in informers]
        await pods.listed.wait()
        await pools.listed.wait()
        await self._take_up()
        servers = [self._relay_server(), self._enrolment_server()]
        for server in servers:
            await server.start()
        log.info("ready: agents are served at port %d", self._settings.relay_port)
        self._serves = True
        await self.keep_address()
        try:
            tasks += [asyncio.create_task(self._look_after()), asyncio.create_task(self._expiry.run())]
            tasks.append(asyncio.create_task(self._quarantine_status.run()))
            with self._policy_watched():
                await _first_failure(tasks)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, self._tender.end(), return_exceptions=True)
            for server in servers:
                await server.stop(STOP_S)

    async def keep_address(self) -> None:
        """Lead agents to this controller. To be called often while this one leads."""
        if self._serves:
            try:
                await self._address.publish()
            except (RetryableError, Refused) as e:
                self._tell("address", f"agents are not led here yet: {e}")

    def _policy_watched(self) -> AbstractContextManager[object]:
        if not (path := self._settings.health_policy):
            return nullcontext()

        def tell(level: str, text: str) -> None:
            log.log(getattr(logging, level.upper()), text)

        return PolicyWatch(Path(path), self._settings.health_observe, self._ledger.take_policy, tell)

    def _relay_server(self) -> Any:
        server = make_server()
        relay_pb2_grpc.add_RelayServicer_to_server(Router(self._ledger.run_for, self._ledger.may_launch), server)
        self._listen(server, self._settings.relay_port, require_client=True)
        return server

    def _enrolment_server(self) -> Any:
        server = make_server(MAX_MESSAGE_BYTES, MAX_AT_ONCE)
        relay_pb2_grpc.add_EnrolmentServicer_to_server(Enrolment(self._api, self._authority), server)
        self._listen(server, self._settings.enrol_port, require_client=False)
        return server

    def _listen(self, server: Any, port: int, require_client: bool) -> None:
        try:
            server.add_secure_port(f"{self._settings.host}:{port}", self._authority.server(require_client))
        except RuntimeError as e:
            raise UserError(f"cannot listen on {self._settings.host}:{port}: {e}") from e

    def _pod_changed(self, manifest: Object, deleted: bool) -> None:
        try:
            pod = read_pod(manifest)
        except (KeyError, TypeError, AttributeError, ValueError) as e:
            self._tell("pods", f"a pod that cannot be read is left out: {type(e).__name__}: {e}")
            return
        if pod is None:
            return
        run = self._ledger.runs.get(pod.key)
        if run is not None and (deleted or pod.leaves):
            run.contained(partial(self._pod_leaves, run, pod))
        if deleted:
            self._ledger.pods.pop(pod.uid, None)
        else:
            self._ledger.pods[pod.uid] = pod
        if run is not None:
            run.contained(partial(self._pod_seen, run, pod, deleted))

    def _pod_leaves(self, run: JobRun, pod: Pod) -> None:
        run.pod_deleted(pod.agent, bool(self._ledger.why_not(pod.node)), time.monotonic())

    def _pod_seen(self, run: JobRun, pod: Pod, deleted: bool) -> None:
        if deleted:
            run.relay.lose(pod.agent, f"pod {pod.name} is deleted")
        run.wake()

    def _quarantine_changed(self, quarantine: Object, deleted: bool) -> None:
        self._ledger.quarantine_changed(quarantine, deleted)
        self._quarantine_status.changed(quarantine, deleted)

    def _object_failed(self, found: Object, error: Exception) -> None:
        """Take note that torchrelay has failed at one object: the job that it belongs to is unprotected, and others go on."""
        key = job_of(found)
        if key is not None and (run := self._ledger.runs.get(key)) is not None:
            run.failed(error)
        else:
            log_failed(found, error)

    async def _find(self, identity: PodIdentity) -> Pod | None:
        manifest = await self._api.get(PODS, identity.pod, identity.namespace)
        return read_pod(manifest) if manifest is not None else None

    async def _remember(self, key: JobKey) -> Remembered:
        job = await self._api.get(TRAINING_JOBS, key.name, key.namespace)
        return recall((job or {}).get("status") or {})

    async def _take_up(self) -> None:
        """Take up the jobs that were to begin again when the controller before this one ended.

        No agent may be there to tell of them.
        """
        while True:
            try:
                jobs, _ = await self._api.list(TRAINING_JOBS, self._settings.watched)
                migrations, _ = await self._api.list(MIGRATIONS, self._settings.watched)
                break
            except RetryableError as e:
                log.warning("%s; tried again", e)
                await asyncio.sleep(AWAY_S)
        for job in jobs:
            key = JobKey(job["metadata"]["namespace"], job["metadata"]["name"])
            try:
                self._ledger.take_up(key, recall(job.get("status") or {}), migrations)
            except Exception as e:  # one that cannot be read must not keep the others from being looked after
                as_fault = not isinstance(e, FatalError)
                log.error("the job %s is not taken up again: %s", key, e, exc_info=as_fault, extra={"run": str(key)})

    async def _look_after(self) -> None:
        """Do what concerns no single job. Each job is looked after in a task of its own."""
        while True:
            self._pulse.beat()
            self._migration_requests.tick()
            self._keep_pace()
            self._tender.begin()
            self._ledger.drop_old()
            await self._pause.sleep(LOOK_S)

    def _keep_pace(self) -> None:
        """Tell all agents how often to send messages: each message costs, and there may be thousands of agents."""
        runs = self._ledger.runs.values()
        seconds = pace(sum(len(run.core.job.nodes) for run in runs), len(runs))
        if abs(seconds - self._pace_s) > PACE_STEP * self._pace_s or seconds == TELL_S:
            self._pace_s = seconds
        for run in runs:
            run.contained(partial(run.relay.pace, self._pace_s))

    async def _look(self, run: JobRun) -> None:
        """Look after one job once."""
        if self._ledger.runs.get(run.key) is not run:
            await self._status_writer.write_migrations(run)
            return
        if not run.failure:
            self._node_watch.look(run)
            self._fallback.look(run, time.monotonic())
            await self._keeper.tend(run)
        await self._status_writer.write(run)
        await self._budgets.tend(run, self._status_writer.known_job(run.key), self._ledger.has_to_leave(run))

    def _tell(self, subject: str, text: str) -> None:
        if self._said.get(subject) != text:
            self._said[subject] = text
            log.warning("%s: %s", subject, text)


async def _first_failure(tasks: list[asyncio.Task[None]]) -> None:
    done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    for task in done:
        task.result()
    raise FatalError("a part of the controller has ended")
