"""The agent of one node: carries reports to the controller and orders to the processes, and decides nothing."""

from __future__ import annotations

import asyncio
import dataclasses
import json
import logging
import os
import shutil
import signal
from collections.abc import Callable, Coroutine, Mapping
from pathlib import Path
from subprocess import DEVNULL
from typing import Any, BinaryIO

from torchrelay.agent.config import AgentConfig
from torchrelay.agent.connections.cadence import Cadence
from torchrelay.agent.connections.orphaned import Holder, judge
from torchrelay.agent.connections.session import Session
from torchrelay.agent.connections.shim_server import ShimEvents, ShimServer
from torchrelay.agent.connections.standing import AgentStanding
from torchrelay.agent.fake_machine.machine import FakeMachine
from torchrelay.agent.fake_machine.replay import play, read_timeline
from torchrelay.agent.fake_machine.strike import strike
from torchrelay.agent.figures import room_samples, session_samples
from torchrelay.agent.health.monitor import MachineMonitor
from torchrelay.agent.health.probes.check import check
from torchrelay.agent.health.probes.places import WatchedPlaces
from torchrelay.agent.health.workers.process import exit_reason
from torchrelay.agent.health.workers.vitals import Vitals
from torchrelay.agent.journals.journal_copies import KeptJournals
from torchrelay.agent.journals.journal_keeper import JournalKeeper
from torchrelay.agent.journals.room import RoomWatch
from torchrelay.agent.processes.endings import Endings
from torchrelay.agent.processes.fault_book import FaultBook
from torchrelay.agent.processes.giving_way import GivingWay
from torchrelay.agent.processes.late_processes import LateProcesses
from torchrelay.agent.processes.launch import WorkerSpec, node_env, worker_specs
from torchrelay.agent.processes.output import Output
from torchrelay.agent.processes.priority import Priorities
from torchrelay.agent.processes.scratch import remove_scratch
from torchrelay.agent.processes.stack_probe import Explainer
from torchrelay.agent.processes.supervise import Supervisor, TrainingProcess
from torchrelay.protocol.errors import FrameError
from torchrelay.protocol.journals.kept import whole_copies
from torchrelay.protocol.machine.pause import Pause
from torchrelay.protocol.messages import (
    Ack,
    AgentHello,
    Assign,
    Begin,
    CheckDevice,
    Explain,
    Explained,
    FaultInjected,
    Fence,
    FetchJournal,
    FetchKept,
    Finishing,
    Follow,
    ForgetJournals,
    FromWorker,
    Hello,
    Inherits,
    KeptCopies,
    KeptCopy,
    LookClosely,
    MayFinish,
    OrderFailed,
    Progress,
    Protect,
    RaisePriority,
    StartRehearser,
    StartWorker,
    StopJob,
    TellAgain,
    TellEvery,
    ToWorker,
    WorkerExited,
    WorkerInfo,
    WorkerProgress,
)
from torchrelay.protocol.metrics.endpoint import endpoint_or_none
from torchrelay.protocol.metrics.samples import Sample
from torchrelay.protocol.names import NO_RANK, WorkerId
from torchrelay.protocol.options.faults import CONTROLLER, Fault, parse_fault
from torchrelay.protocol.security.tls import Credentials

log = logging.getLogger(__name__)

FLUSH_S = 5.0
RESTART_S = 1.0


class NodeAgent:
    """`environ` is what the training processes inherit. `standard_input`: of those that begin with a rank, as Popen takes it."""

    def __init__(self, config: AgentConfig, secret: bytes, environ: Mapping[str, str], standard_input: int) -> None:
        self._config, self._environ, self._standard_input = config, environ, standard_input
        self._credentials = Credentials.from_secret(secret, f"agent {config.node}")
        self._supervisor = Supervisor(self._exited)
        self._journals = JournalKeeper(Path(config.journal_dir))
        self._output = Output(config.tee, config.redirects, config.log_dir, config.run_id, config.role)
        self._faults = FaultBook(config.inject)
        self._ranks: dict[WorkerId, int] = {}
        self._ranks_held: set[int] = set()
        """By any process of this node, so far."""
        self._gone = Endings()
        self._standings: dict[WorkerId, AgentStanding] = {}
        self._copies = KeptJournals(config.host, lambda worker: worker in self._ranks)
        self._finishing: set[WorkerId] = set()
        self._excused: set[WorkerId] = set()
        self._pids: dict[WorkerId, int] = {}
        self._vitals, self._cadence, self._pause = Vitals(), Cadence(), Pause()
        self._explainer = Explainer(self._ask_shim, lambda worker, report: self._send(FromWorker(worker, report)))
        self._a_child_changed = False
        self._giving_way = GivingWay(Priorities())
        self._late = LateProcesses(config, environ, self._supervisor, self._enrol, self._giving_way)
        self._follows = Follow("", 0)
        self._kept: set[asyncio.Task[None]] = set()
        self._stop: asyncio.Future[StopJob] = asyncio.get_running_loop().create_future()
        self._shims: ShimServer
        self._session: Session
        self._machine = FakeMachine(Path(config.machine)) if config.machine else None
        self._places = WatchedPlaces(config.machine, config.host, config.watched, config.notices, config.dcgm)
        self._room = RoomWatch(Path(config.journal_dir), tuple(map(Path, config.jit_dirs)), self._send)
        self._monitor = MachineMonitor(self._places, list(config.workers()), environ, self._send, self._worker_with)

    async def run(self) -> int:
        """Until the job is stopped; returns the exit code. All processes of the node are gone then."""
        specs = worker_specs(self._config, self._environ)
        tokens = {s.worker: s.token for s in specs}
        self._shims = ShimServer(self._config.socket_path, tokens, ShimEvents(self._connected, self._reported))
        if self._machine is not None:
            replay = self._config.replay
            self._machine.make(read_timeline(Path(replay)).gpus if replay else len(specs))
        self._session = Session(self._credentials, self._config.controller, self._hello, self._ordered)
        self._shims.start()
        metrics = endpoint_or_none(self._config.metrics_host, self._config.metrics_port, self._samples)
        tasks: list[asyncio.Task[None]] = []
        try:
            for spec in specs:
                self._journals.create(spec.worker)
                self._begins(spec.worker, NO_RANK if spec.rank is None else spec.rank)
                streams = self._output.open(spec.worker, spec.name, spec.local_rank)
                self._supervisor.start(spec, streams, DEVNULL if spec.rank is None else self._standard_input)
                if spec.rank is None:
                    pid = self._supervisor.children[spec.worker].process.pid
                    self._giving_way.until_first_step(spec.worker, pid)
            self._output.start()
            if self._config.nnodes > 1:
                await self._copies.start()
            tasks += [
                asyncio.create_task(persistently(w))
                for w in (self._session.run, self._watch_progress, self._monitor.run, self._room.run)
            ]
            stop = await self._stop
            log.info("the job ends: %s", stop.reason)
            await self._supervisor.stop(stop.signal, self._config.grace_s)
            self._session.close()
            if self._session.connected and (await asyncio.wait(tasks[:1], timeout=FLUSH_S))[1]:
                log.warning("the controller was not told of everything")
            return stop.exit_code
        finally:
            await self._supervisor.kill()
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            if metrics is not None:
                metrics.close()
            self._shims.close()
            await self._copies.close()
            self._output.end()
            shutil.rmtree(self._config.kept_path, ignore_errors=True)
            self._journals.remove()

    def _samples(self) -> list[Sample]:
        processes = len(self._supervisor.children)
        return [*session_samples(self._session, processes), *room_samples(self._room.latest)]

    def stop(self, exit_code: int, signal_number: int, reason: str) -> None:
        """Ends the node; the first word counts."""
        if not self._stop.done():
            self._stop.set_result(StopJob(exit_code, signal_number, reason))

    def turn_to(self, controller: str) -> None:
        """The controller of the job is another one, at HOST:PORT."""
        log.info("the job has another controller, at %s", controller)
        self._session.turn_to(controller)

    def end_now(self, reason: str) -> None:
        """Ends the node without any grace, also one that a stop has granted already."""
        self.stop(1, signal.SIGKILL, reason)
        self._keep(self._supervisor.kill())

    def child_changed(self) -> None:
        """On SIGCHLD: a process was stopped, goes on or ended; the kernel tells its parent at once."""
        self._a_child_changed = True
        self._pause.end()

    def _begins(self, worker: WorkerId, rank: int = NO_RANK) -> None:
        self._ranks[worker] = rank
        self._ranks_held.add(rank)
        self._standings[worker] = AgentStanding(in_force=-1 if rank == NO_RANK else 0)

    def _hello(self) -> AgentHello:
        children = self._supervisor.children
        workers = tuple(self._info(child) for worker, child in children.items() if worker not in self._late.rehearsers)
        copies = self._copies
        return AgentHello(
            self._config.node,
            self._config.node_rank,
            self._config.host,
            workers,
            copies_port=copies.port,
            copies_token=copies.invitation,
            copies_of=copies.newest_gates,
            job=self._follows.job,
            epoch=self._follows.epoch,
            candidate=self._config.candidate,
            program=self._config.program,
            # Of a machine that joins later, the job has its number already.
            spares=self._late.spares_more + (0 if self._config.joins else self._config.spares),
        )

    def _info(self, child: TrainingProcess) -> WorkerInfo:
        worker, standing = child.spec.worker, self._standings[child.spec.worker]
        return WorkerInfo(
            worker,
            self._ranks[worker],
            child.process.pid,
            {},
            standing.generation,
            standing.protected,
            standing.in_force,
            standing.gate_secret,
        )

    def _send(self, message: Any) -> None:
        try:
            self._session.send(message)
        except FrameError as e:
            log.error("not sent: %s", e)

    def _connected(self, worker: WorkerId, hello: Hello) -> None:
        self._pids[worker] = hello.pid
        self._send(FromWorker(worker, hello))

    def _reported(self, worker: WorkerId, report: Any) -> None:
        if isinstance(report, Explained):
            self._explainer.answered(worker, report)
            return
        if isinstance(report, FaultInjected):
            self._fault_fires(worker, report)
            return
        self._send(FromWorker(worker, report))
        self._standings[worker].said.keep(report)
        if isinstance(report, Finishing):
            self._finishing.add(worker)

    def _fault_fires(self, worker: WorkerId, report: FaultInjected) -> None:
        self._faults.fired(report.fault)
        fault = parse_fault(report.fault)
        if fault.kind == CONTROLLER:
            self._kill_controller(fault)
        self._send(FromWorker(worker, report))  # in that case to the next one
        if fault.kind == CONTROLLER:
            self._shims.send(worker, Ack())
            return
        if fault.is_of_a_device:
            self._strike(worker, fault)
        self._keep(self._acknowledge(worker))

    def _kill_controller(self, fault: Fault) -> None:
        try:
            os.kill(json.loads(Path(self._config.controller_file).read_bytes())["pid"], signal.SIGKILL)
        except (OSError, ValueError, KeyError) as e:
            log.error("%s cannot strike: the controller is not known here: %s", fault, e)

    async def _acknowledge(self, worker: WorkerId) -> None:
        """Of a fault: it may end this agent too, and must have been told by then."""
        await self._session.told()
        self._shims.send(worker, Ack())

    def _strike(self, worker: WorkerId, fault: Fault) -> None:
        if self._machine is None:
            return
        gpu = self._monitor.gpu_index(worker)
        if gpu is None:
            log.error("%s cannot strike: the fake driver does not answer", fault)
        else:
            strike(self._machine, fault, gpu, self._pids[worker])

    def _worker_with(self, pid: int) -> WorkerId | None:
        return next((w for w, its in self._pids.items() if its == pid), None)

    def _exited(self, child: TrainingProcess) -> None:
        worker = child.spec.worker
        if child.signal == signal.SIGKILL and not child.fenced:
            self._monitor.explain_kill(worker, child.process.pid)
        self._shims.drain(worker)
        self._late.ended(worker)
        self._giving_way.ended(worker)
        remove_scratch(child.process.pid, child.spec.env)
        log.info("%s %s", worker, exit_reason(child.exit_code, child.signal))
        self._standings[worker].exited = exited = WorkerExited(worker, child.exit_code, child.signal, child.fenced)
        self._send(exited)
        if self._ranks[worker] == NO_RANK:
            self._forget(worker)

    def _forget(self, worker: WorkerId) -> None:
        """Of a process whose rank others have, or that never had one, nothing is kept once it has ended."""
        self._journals.forget(worker)
        if not self._supervisor.forget(worker):
            return
        self._gone.add(self._standings[worker].exited or WorkerExited(worker, 0, 0, False))
        self._shims.ended(worker)
        self._output.forget(worker)
        self._vitals.forget(worker)
        for known in (self._ranks, self._standings, self._pids):
            known.pop(worker, None)
        for named in (self._finishing, self._excused):
            named.discard(worker)

    def _ordered(self, order: Any) -> None:  # noqa: C901 - one case for each order
        if isinstance(order, ToWorker):
            self._pass_on(WorkerId(order.worker), order.order)
        elif isinstance(order, Fence):
            self._keep(self._fence(WorkerId(order.worker)))
        elif isinstance(order, FetchJournal):
            worker = WorkerId(order.worker)
            self._send(self._journals.content(worker) if worker in self._ranks else self._copies.content(worker))
        elif isinstance(order, ForgetJournals):
            self._forget(WorkerId(order.worker))
            self._copies.forget(order.worker)
        elif isinstance(order, CheckDevice):
            self._keep(self._check(order.subject))
        elif isinstance(order, StopJob):
            self.stop(order.exit_code, order.signal, order.reason)
        elif isinstance(order, TellAgain):
            for worker in self._late.living_rehearsers():
                self._keep(self._fence(worker))  # whoever had them started is gone
            others = {w: its for w, its in self._standings.items() if w not in self._late.rehearsers}
            for message in (m for worker, its in others.items() for m in its.again(worker)):
                self._send(message)
            self._room.again()
        elif isinstance(order, Inherits):
            self._standings[WorkerId(order.worker)].said.inherit(order.checks)
        elif isinstance(order, Follow):
            self._follows = order
        elif isinstance(order, StartWorker):
            self._send(self._late.take_over(order))
            if order.in_place_of:
                self._monitor.takes_place(self._late.latest, WorkerId(order.in_place_of))
        elif isinstance(order, StartRehearser):
            self._send(self._late.rehearse(self._pids.get(WorkerId(order.beside), 0)))
        elif isinstance(order, RaisePriority):
            self._is_needed(WorkerId(order.worker))
        elif isinstance(order, FetchKept):
            self._tell_kept()
        elif isinstance(order, LookClosely):
            self._cadence.closely = order.on
            self._pause.end()
        elif isinstance(order, TellEvery):
            self._cadence.take_pace(order.seconds)
            self._pause.end()

    async def _check(self, subject: str) -> None:
        self._send(await check(self._config.node, self._places.probes(), subject))

    def _enrol(self, spec: WorkerSpec) -> dict[int, BinaryIO]:
        """Makes ready for a further process; returns where its output goes. Raises TorchrelayError, OSError."""
        self._journals.create(spec.worker)
        self._shims.expect(spec.worker, spec.token)
        self._begins(spec.worker, NO_RANK)
        return self._output.open(spec.worker, spec.name, spec.local_rank)

    def _is_needed(self, worker: WorkerId) -> None:
        self._giving_way.is_needed(worker, self._pids.get(worker))

    def _tell_kept(self) -> None:
        for rank, copies in whole_copies(self._config.kept_path).items():
            for folder, parts in copies:
                copy = KeptCopy(rank, parts.boundary, str(folder), parts.journal, parts.set_up, parts.ddp_layout)
                self._send(KeptCopies((copy,), last=False))
        self._send(KeptCopies())

    def _keep(self, work: Coroutine[Any, Any, None]) -> None:
        # The loop itself holds on to no task.
        task = asyncio.ensure_future(work)
        self._kept.add(task)
        task.add_done_callback(self._kept.discard)

    def _pass_on(self, worker: WorkerId, order: Any) -> None:
        child = self._supervisor.children.get(worker)
        if child is None or child.gone.is_set():
            log.debug("%s is not there to take %s", worker, type(order).__name__)
            return
        self._standings[worker].ordered(order)
        if isinstance(order, Explain):
            self._keep(self._explainer.explain(worker, self._pids.get(worker, child.process.pid), order))
            return
        if isinstance(order, Assign):
            self._is_needed(worker)
            order = self._assigned(worker, order)
        elif isinstance(order, Begin) and not order.spare:
            order = self._begun(worker, order)
        elif isinstance(order, Protect) and order.on and self._config.replay and self._machine is not None:
            machine, self._machine = self._machine, None  # once
            self._keep(play(machine, Path(self._config.replay)))
        try:
            self._shims.send(worker, order)
        except FrameError as e:
            generation = getattr(order, "generation", 0)
            self._send(FromWorker(worker, OrderFailed(generation, type(order).__name__, str(e))))

    def _ask_shim(self, worker: WorkerId, order: Explain) -> None:
        self._shims.send(worker, order)

    def _begun(self, worker: WorkerId, order: Begin) -> Begin:
        """A script that waited begins: its own rank's, or that of a machine that is missing."""
        rank, env = int(order.env["RANK"]), order.env | node_env(self._config, self._environ)
        if self._ranks[worker] == rank:
            return dataclasses.replace(order, env=env)
        self._is_needed(worker)
        self._ranks[worker], self._standings[worker].in_force = rank, 0
        self._ranks_held.add(rank)
        local_rank = rank % self._config.nproc_per_node
        self._output.assign(worker, local_rank)
        own = self._monitor.environment(worker, local_rank)
        return dataclasses.replace(order, env=env | own)

    def _assigned(self, worker: WorkerId, order: Assign) -> Assign:
        home, local_rank = divmod(order.rank, self._config.nproc_per_node)
        was_here = home == self._config.node_rank or order.rank in self._ranks_held
        self._ranks[worker] = order.rank
        self._ranks_held.add(order.rank)
        self._output.assign(worker, local_rank)
        faults = self._faults.environment(order.rank) if was_here else {}
        own = self._monitor.environment(worker, local_rank)
        return dataclasses.replace(order, env=faults | order.env | node_env(self._config, self._environ) | own)

    async def _fence(self, worker: WorkerId) -> None:
        child = self._supervisor.children.get(worker)
        if (exited := self._gone.of(worker)) is not None:
            self._send(dataclasses.replace(exited, fenced=True))
        elif child is None:
            log.error("a fence for %s, which this agent did not start", worker)
        elif child.gone.is_set():
            child.fenced = True
            self._send(WorkerExited(worker, child.exit_code, child.signal, True))
        else:
            await self._supervisor.fence(child)

    async def _watch_progress(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            ask_kernel, self._a_child_changed = self._a_child_changed, False
            now_s = loop.time()
            seen = tuple(self._look(child, now_s, ask_kernel) for child in self._supervisor.living())
            self._giving_way.saw(seen, self._ranks, self._pids)
            if self._cadence.is_to_be_told(seen, now_s):
                self._send(Progress(seen))
            if self._session.away_s > self._config.orphan_s:
                self._govern_alone()
            await self._pause.sleep(self._cadence.pause_s(seen))

    def _look(self, child: TrainingProcess, now_s: float, ask_kernel: bool) -> WorkerProgress:
        worker = child.spec.worker
        pid = self._pids.get(worker, child.process.pid)
        # Of a stop the kernel tells the parent alone, which is a wrapper of the user's here.
        is_wrapped = pid != child.process.pid
        return self._vitals.see(worker, pid, self._journals.progress(worker), now_s, ask_kernel or is_wrapped)

    def _govern_alone(self) -> None:
        verdict = judge(
            (
                Holder(c.spec.worker, self._ranks[c.spec.worker], c.exit_code if c.gone.is_set() else None)
                for c in self._supervisor.children.values()
                if self._ranks[c.spec.worker] != NO_RANK and not c.fenced
            ),
            self._finishing - self._excused,
        )
        for worker in verdict.may_finish:
            self._excused.add(worker)
            self._shims.send(worker, MayFinish())
        if verdict.stop is not None:
            self.stop(verdict.stop.exit_code, verdict.stop.signal, verdict.stop.reason)


async def persistently(work: Callable[[], Coroutine[Any, Any, None]]) -> None:
    """Until `work` returns. One that raises, which is a bug, is told in the log and begun anew: training must go on."""
    while True:
        task = asyncio.ensure_future(work())
        try:
            await asyncio.wait((task,))
        finally:
            task.cancel()
        if task.cancelled() or (error := task.exception()) is None:
            return
        log.error("a part of the agent failed and starts again", exc_info=error)
        await asyncio.sleep(RESTART_S)
