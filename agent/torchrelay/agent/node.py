"""The agent of one node: carries reports to the controller and orders to the processes, and decides nothing."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torchrelay.agent.config import AgentConfig
from torchrelay.agent.health.process import exit_reason
from torchrelay.agent.journal_keeper import JournalKeeper
from torchrelay.agent.launch import worker_specs
from torchrelay.agent.output import Output
from torchrelay.agent.session import Session
from torchrelay.agent.shim_server import ShimEvents, ShimServer
from torchrelay.agent.supervise import Child, Supervisor
from torchrelay.protocol.errors import FrameError
from torchrelay.protocol.messages import (
    Ack,
    AgentHello,
    Assign,
    FaultInjected,
    Fence,
    FetchJournal,
    FromWorker,
    Hello,
    OrderFailed,
    Progress,
    StopJob,
    ToWorker,
    WorkerExited,
    WorkerInfo,
    WorkerProgress,
)
from torchrelay.protocol.names import NO_RANK, WorkerId
from torchrelay.protocol.tls import Credentials

log = logging.getLogger(__name__)

POLL_S = 0.05
PROGRESS_AT_LEAST_EVERY_S = 1.0
FLUSH_S = 5.0


class Node:
    """`environ` is what the training processes inherit."""

    def __init__(self, config: AgentConfig, secret: bytes, environ: Mapping[str, str]) -> None:
        self._config, self._environ = config, environ
        self._credentials = Credentials.from_secret(secret, f"agent {config.node}")
        self._supervisor = Supervisor(self._exited)
        self._journals = JournalKeeper(Path(config.journal_dir))
        self._output = Output(config.tee, config.redirects, config.log_dir, config.run_id)
        self._ranks: dict[WorkerId, int] = {}
        self._pids: dict[WorkerId, int] = {}
        self._fences: set[asyncio.Task[None]] = set()
        self._stop: asyncio.Future[StopJob] = asyncio.get_running_loop().create_future()
        self._shims: ShimServer
        self._session: Session

    async def run(self) -> int:
        """Until the job is stopped; returns the exit code. All processes of the node are gone then."""
        specs = worker_specs(self._config, self._environ)
        tokens = {s.worker: s.token for s in specs}
        self._shims = ShimServer(self._config.socket_path, tokens, ShimEvents(self._connected, self._reported))
        self._session = Session(self._credentials, self._config.controller, self._hello, self._ordered)
        self._shims.start()
        tasks: list[asyncio.Task[None]] = []
        try:
            for spec in specs:
                self._journals.create(spec.worker)
                self._ranks[spec.worker] = NO_RANK if spec.rank is None else spec.rank
                self._supervisor.start(spec, self._output.open(spec.worker, spec.name, spec.local_rank))
            self._output.start()
            tasks += [asyncio.create_task(self._session.run()), asyncio.create_task(self._watch_progress())]
            stop = await self._stop
            log.info("the job ends: %s", stop.reason)
            await self._supervisor.stop(stop.signal, self._config.grace_s)
            self._session.close()
            if (await asyncio.wait(tasks[:1], timeout=FLUSH_S))[1]:
                log.warning("the controller was not told of everything")
            return stop.exit_code
        finally:
            await self._supervisor.kill()
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            self._shims.close()
            self._output.end()
            self._journals.remove()

    def stop(self, exit_code: int, signal_number: int, reason: str) -> None:
        """Ends the node; the first word counts."""
        if not self._stop.done():
            self._stop.set_result(StopJob(exit_code, signal_number, reason))

    def _hello(self) -> AgentHello:
        children = self._supervisor.children.values()
        workers = tuple(WorkerInfo(c.spec.worker, self._ranks[c.spec.worker], c.process.pid) for c in children)
        return AgentHello(self._config.node, self._config.node_rank, self._config.host, workers)

    def _send(self, message: Any) -> None:
        try:
            self._session.send(message)
        except FrameError as e:
            log.error("not sent: %s", e)

    def _connected(self, worker: WorkerId, hello: Hello) -> None:
        self._pids[worker] = hello.pid
        self._send(FromWorker(worker, hello))

    def _reported(self, worker: WorkerId, report: Any) -> None:
        self._send(FromWorker(worker, report))
        if isinstance(report, FaultInjected):
            self._shims.send(worker, Ack())

    def _exited(self, child: Child) -> None:
        worker = child.spec.worker
        self._shims.drain(worker)
        log.info("%s %s", worker, exit_reason(child.exit_code, child.signal))
        self._send(WorkerExited(worker, child.exit_code, child.signal, child.fenced))

    def _ordered(self, order: Any) -> None:
        if isinstance(order, ToWorker):
            self._pass_on(WorkerId(order.worker), order.order)
        elif isinstance(order, Fence):
            task = asyncio.ensure_future(self._fence(WorkerId(order.worker)))
            self._fences.add(task)
            task.add_done_callback(self._fences.discard)
        elif isinstance(order, FetchJournal):
            self._send(self._journals.content(WorkerId(order.worker)))
        elif isinstance(order, StopJob):
            self.stop(order.exit_code, order.signal, order.reason)

    def _pass_on(self, worker: WorkerId, order: Any) -> None:
        child = self._supervisor.children.get(worker)
        if child is None or child.gone.is_set():
            log.debug("%s is not there to take %s", worker, type(order).__name__)
            return
        if isinstance(order, Assign):
            self._ranks[worker] = order.rank
            self._output.assign(worker, int(order.env.get("LOCAL_RANK", order.rank % self._config.nproc_per_node)))
        try:
            self._shims.send(worker, order)
        except FrameError as e:
            generation = getattr(order, "generation", 0)
            self._send(FromWorker(worker, OrderFailed(generation, type(order).__name__, str(e))))

    async def _fence(self, worker: WorkerId) -> None:
        child = self._supervisor.children.get(worker)
        if child is None:
            log.error("a fence for %s, which this agent did not start", worker)
        elif child.gone.is_set():
            self._send(WorkerExited(worker, child.exit_code, child.signal, True))
        else:
            await self._supervisor.fence(child)

    async def _watch_progress(self) -> None:
        loop = asyncio.get_running_loop()
        last: tuple[WorkerProgress, ...] = ()
        sent_s = 0.0
        while True:
            now = tuple(
                self._journals.progress(c.spec.worker, self._pids.get(c.spec.worker, c.process.pid))
                for c in self._supervisor.living()
            )
            if now != last or loop.time() - sent_s >= PROGRESS_AT_LEAST_EVERY_S:
                last, sent_s = now, loop.time()
                self._send(Progress(now))
            await asyncio.sleep(POLL_S)
