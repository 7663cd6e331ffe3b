"""The processes of one machine, which its agent starts, watches and ends."""

from __future__ import annotations

import dataclasses
import logging
import shutil
import signal
from collections.abc import Mapping
from pathlib import Path
from subprocess import DEVNULL
from typing import Any, BinaryIO

from torchrelay.agent.agent import Agent, AgentPlace
from torchrelay.agent.config import AgentConfig
from torchrelay.agent.connections.orphaned import Holder, judge
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
from torchrelay.agent.injected_faults import InjectedFaults
from torchrelay.agent.journals.journal_keeper import JournalKeeper
from torchrelay.agent.journals.kept_copies import kept_copies
from torchrelay.agent.journals.room import RoomWatch
from torchrelay.agent.processes.endings import Endings
from torchrelay.agent.processes.giving_way import GivingWay
from torchrelay.agent.processes.known import KnownProcesses
from torchrelay.agent.processes.late_processes import LateProcesses
from torchrelay.agent.processes.launch import WorkerSpec, node_env, worker_specs
from torchrelay.agent.processes.output import Output
from torchrelay.agent.processes.priority import Priorities
from torchrelay.agent.processes.scratch import remove_scratch
from torchrelay.agent.processes.supervise import Supervisor, TrainingProcess
from torchrelay.protocol.messages import (
    AgentHello,
    Assign,
    Begin,
    CheckDevice,
    FaultInjected,
    Fence,
    FetchKept,
    Finishing,
    Follow,
    FromWorker,
    Hello,
    MayFinish,
    Protect,
    RaisePriority,
    StartRehearser,
    StartWorker,
    StopJob,
    TellAgain,
    WorkerExited,
    WorkerInfo,
    WorkerProgress,
)
from torchrelay.protocol.metrics.samples import Sample
from torchrelay.protocol.names import NO_RANK, WorkerId
from torchrelay.protocol.options.faults import Fault
from torchrelay.protocol.security.tls import Credentials

log = logging.getLogger(__name__)


class NodeAgent:
    """The agent of one machine. `environ`: what the training processes inherit.

    `standard_input`: of the processes that begin with a rank, as Popen takes it.
    """

    def __init__(self, config: AgentConfig, secret: bytes, environ: Mapping[str, str], standard_input: int) -> None:
        self._config = config
        self._environ = environ
        self._standard_input = standard_input
        self._specs = worker_specs(config, environ)
        self._supervisor = Supervisor(self._exited)
        self._output = Output(config.tee, config.redirects, config.log_dir, config.run_id, config.role)
        self._known = KnownProcesses()
        self._gone = Endings()
        self._vitals = Vitals()
        self._a_child_changed = False
        self._giving_way = GivingWay(Priorities())
        self._late = LateProcesses(config, environ, self._supervisor, self._enrol, self._giving_way)
        self._follows = Follow("", 0)
        self._machine = FakeMachine(Path(config.machine)) if config.machine else None
        self._places = WatchedPlaces(config.machine, config.host, config.watched, config.notices, config.dcgm)
        self._agent = self._make_agent(secret)
        self._faults = InjectedFaults(config.inject, Path(config.controller_file), self._agent, self._strike)
        tell = self._agent.tell
        self._room = RoomWatch(Path(config.journal_dir), tuple(map(Path, config.jit_dirs)), tell)
        self._monitor = MachineMonitor(self._places, list(config.workers()), environ, tell, self._known.with_pid)

    def _make_agent(self, secret: bytes) -> Agent:
        config = self._config
        place = AgentPlace(
            config.controller,
            config.host,
            config.metrics_host,
            config.metrics_port,
            config.orphan_s,
            takes_copies=config.nnodes > 1,
        )
        tokens = {s.worker: s.token for s in self._specs}
        shims = ShimServer(config.socket_path, tokens, ShimEvents(self._connected, self._reported))
        credentials = Credentials.from_secret(secret, f"agent {config.node}")
        journals = JournalKeeper(Path(config.journal_dir))
        orders = {
            Fence: lambda order: self._agent.keep(self._fence(WorkerId(order.worker))),
            CheckDevice: lambda order: self._agent.keep(self._check(order.subject)),
            TellAgain: self._tell_again,
            Follow: self._follow,
            StartWorker: self._start_worker,
            StartRehearser: self._start_rehearser,
            RaisePriority: lambda order: self._is_needed(WorkerId(order.worker)),
            FetchKept: self._tell_kept,
        }
        return Agent(place, self, credentials, shims, journals, orders)

    async def run(self) -> int:
        """Run until the job is stopped. Return the exit code. All processes of the node are gone then."""
        if self._machine is not None:
            replay = self._config.replay
            self._machine.make(read_timeline(Path(replay)).gpus if replay else len(self._specs))
        agent = self._agent
        agent.open()
        try:
            self._start_processes()
            await agent.begin(agent.session.run, self._monitor.run, self._room.run)
            stop = await agent.stopped
            log.info("the job ends: %s", stop.reason)
            await self._supervisor.stop(stop.signal, self._config.grace_s)
            await agent.take_leave()
            return stop.exit_code
        finally:
            await self._supervisor.kill()
            await agent.close()
            self._output.end()
            shutil.rmtree(self._config.kept_path, ignore_errors=True)
            agent.journals.remove()

    def _start_processes(self) -> None:
        for spec in self._specs:
            self._agent.journals.create(spec.worker)
            self._known.begins(spec.worker, NO_RANK if spec.rank is None else spec.rank)
            streams = self._output.open(spec.worker, spec.name, spec.local_rank)
            self._supervisor.start(spec, streams, DEVNULL if spec.rank is None else self._standard_input)
            if spec.rank is None:
                pid = self._supervisor.children[spec.worker].process.pid
                self._giving_way.until_first_step(spec.worker, pid)
        self._output.start()

    def stop(self, exit_code: int, signal_number: int, reason: str) -> None:
        """End the node. If it is called more than once, the first call counts."""
        self._agent.stop(StopJob(exit_code, signal_number, reason))

    def turn_to(self, controller: str) -> None:
        """Turn to another controller of the job, at HOST:PORT."""
        log.info("the job has another controller, at %s", controller)
        self._agent.session.turn_to(controller)

    def end_now(self, reason: str) -> None:
        """End the node without any grace, even if a stop has granted one before."""
        self.stop(1, signal.SIGKILL, reason)
        self._agent.keep(self._supervisor.kill())

    def child_changed(self) -> None:
        """Look at the processes, since SIGCHLD came: one was stopped, goes on or ended. The kernel tells its parent at once."""
        self._a_child_changed = True
        self._agent.look_now()

    def hello(self) -> AgentHello:
        """Return the message that opens a stream to the controller: what is true of this machine now."""
        copies = self._agent.copies
        living = self._supervisor.children.items()
        return AgentHello(
            self._config.node,
            self._config.node_rank,
            self._config.host,
            tuple(self._info(child) for worker, child in living if worker not in self._late.rehearsers),
            copies_port=copies.port,
            copies_token=copies.invitation,
            copies_of=copies.newest_gates,
            job=self._follows.job,
            epoch=self._follows.epoch,
            candidate=self._config.candidate,
            program=self._config.program,
            # The job already has the number of a machine that joins later.
            spares=self._late.spares_more + (0 if self._config.joins else self._config.spares),
        )

    def _info(self, child: TrainingProcess) -> WorkerInfo:
        worker = child.spec.worker
        known = self._known[worker]
        return known.standing.info(worker, known.rank, child.process.pid)

    def samples(self) -> list[Sample]:
        """Return the samples of this machine's agent for Prometheus."""
        processes = len(self._supervisor.children)
        return [*session_samples(self._agent.session, processes), *room_samples(self._room.latest)]

    def knows(self, worker: str) -> bool:
        """Return whether `worker` is a process of this machine."""
        return worker in self._known

    def pid_of(self, worker: WorkerId) -> int | None:
        """Return the pid that a living process says it has, or else the one that was started; None for any other process."""
        child = self._supervisor.children.get(worker)
        return None if child is None or child.gone.is_set() else self._pid(child)

    def standing(self, worker: WorkerId) -> AgentStanding | None:
        """Return the standing of a process of this machine that has not been forgotten; None for any other process."""
        known = self._known.get(worker)
        return known.standing if known is not None else None

    def standings(self) -> dict[WorkerId, AgentStanding]:
        """Return the standings of all processes but those that rehearse: the controller that had those started is gone."""
        return {w: its for w, its in self._known.standings().items() if w not in self._late.rehearsers}

    def _connected(self, worker: WorkerId, hello: Hello) -> None:
        self._known[worker].pid = hello.pid
        self._agent.tell(FromWorker(worker, hello))

    def _reported(self, worker: WorkerId, report: Any) -> None:
        if isinstance(report, FaultInjected):
            self._faults.fires(worker, report)
            return
        self._agent.reported(worker, report)
        if isinstance(report, Finishing):
            self._known[worker].finishing = True

    def _strike(self, worker: WorkerId, fault: Fault) -> None:
        if self._machine is None:
            return
        gpu = self._monitor.gpu_index(worker)
        pid = self._known[worker].pid
        if gpu is None or pid is None:
            log.error("%s cannot strike: the fake driver does not answer", fault)
        else:
            strike(self._machine, fault, gpu, pid)

    def _pid(self, child: TrainingProcess) -> int:
        """Return the pid of the process that trains.

        Before it has said its pid, return that of the process that was started: this may be a wrapper.
        """
        return self._known[child.spec.worker].pid or child.process.pid

    def _exited(self, child: TrainingProcess) -> None:
        worker = child.spec.worker
        if child.signal == signal.SIGKILL and not child.fenced:
            self._monitor.explain_kill(worker, child.process.pid)
        self._agent.shims.drain(worker)
        self._late.ended(worker)
        self._giving_way.ended(worker)
        remove_scratch(child.process.pid, child.spec.env)
        log.info("%s %s", worker, exit_reason(child.exit_code, child.signal))
        known = self._known[worker]
        known.standing.exited = exited = WorkerExited(worker, child.exit_code, child.signal, child.fenced)
        self._agent.tell(exited)
        if known.rank == NO_RANK:
            self.forget(worker)

    def forget(self, worker: WorkerId) -> None:
        """Drop all that is kept of a process once it has ended. Its rank has gone to another process, or it never had one."""
        self._agent.journals.forget(worker)
        if not self._supervisor.forget(worker):
            return
        self._gone.add(self._known.forget(worker).standing.exited or WorkerExited(worker, 0, 0, False))
        self._agent.shims.ended(worker)
        self._output.forget(worker)
        self._vitals.forget(worker)

    def prepared(self, worker: WorkerId, order: Any) -> Any:
        """Return what the process is told in the order's place."""
        if isinstance(order, Assign):
            self._is_needed(worker)
            return self._assigned(worker, order)
        if isinstance(order, Begin) and not order.spare:
            return self._begun(worker, order)
        if isinstance(order, Protect) and order.on and self._config.replay and self._machine is not None:
            machine = self._machine
            self._machine = None  # it is played once
            self._agent.keep(play(machine, Path(self._config.replay)))
        return order

    def _begun(self, worker: WorkerId, order: Begin) -> Begin:
        """Return the order with which a waiting script begins.

        It begins as the process's own rank, or as a rank of a machine that is missing.
        """
        rank = int(order.env["RANK"])
        env = order.env | node_env(self._config, self._environ)
        known = self._known[worker]
        if known.rank == rank:
            return dataclasses.replace(order, env=env)
        self._is_needed(worker)
        known.standing.in_force = 0
        self._known.takes_rank(worker, rank)
        local_rank = rank % self._config.nproc_per_node
        self._output.assign(worker, local_rank)
        own = self._monitor.environment(worker, local_rank)
        return dataclasses.replace(order, env=env | own)

    def _assigned(self, worker: WorkerId, order: Assign) -> Assign:
        home, local_rank = divmod(order.rank, self._config.nproc_per_node)
        was_here = home == self._config.node_rank or self._known.was_here(order.rank)
        self._known.takes_rank(worker, order.rank)
        self._output.assign(worker, local_rank)
        faults = self._faults.environment(order.rank) if was_here else {}
        own = self._monitor.environment(worker, local_rank)
        return dataclasses.replace(order, env=faults | order.env | node_env(self._config, self._environ) | own)

    def _tell_again(self, order: TellAgain) -> None:
        for worker in self._late.living_rehearsers():
            self._agent.keep(self._fence(worker))
        self._agent.tell_again()
        self._room.again()

    def _follow(self, order: Follow) -> None:
        self._follows = order

    def _start_worker(self, order: StartWorker) -> None:
        place = order.in_place_of
        late = self._late.take_over(order, is_more=not place or self._monitor.is_gpu(place))
        self._agent.tell(late)
        if late.pid and place:
            self._monitor.takes_place(WorkerId(late.worker), place)

    def _start_rehearser(self, order: StartRehearser) -> None:
        self._agent.tell(self._late.rehearse(self._known.said_pid(WorkerId(order.beside)) or 0))

    def _tell_kept(self, order: FetchKept) -> None:
        for copies in kept_copies(self._config.kept_path):
            self._agent.tell(copies)

    async def _check(self, subject: str) -> None:
        self._agent.tell(await check(self._config.node, self._places.probes(), subject))

    def _enrol(self, spec: WorkerSpec) -> dict[int, BinaryIO]:
        """Make ready for a further process. Return where its output goes. Raises TorchrelayError, OSError."""
        self._agent.journals.create(spec.worker)
        self._agent.shims.expect(spec.worker, spec.token)
        self._known.begins(spec.worker, NO_RANK)
        return self._output.open(spec.worker, spec.name, spec.local_rank)

    def _is_needed(self, worker: WorkerId) -> None:
        self._giving_way.is_needed(worker, self._known.said_pid(worker))

    async def _fence(self, worker: WorkerId) -> None:
        child = self._supervisor.children.get(worker)
        if (exited := self._gone.of(worker)) is not None:
            self._agent.tell(dataclasses.replace(exited, fenced=True))
        elif child is None:
            log.error("a fence for %s, which this agent did not start", worker)
        elif child.gone.is_set():
            child.fenced = True
            self._agent.tell(WorkerExited(worker, child.exit_code, child.signal, True))
        else:
            await self._supervisor.fence(child)

    def look(self, now_s: float) -> tuple[WorkerProgress, ...]:
        """Return how far the living processes are."""
        ask_kernel = self._a_child_changed
        self._a_child_changed = False
        seen = tuple(self._look(child, now_s, ask_kernel) for child in self._supervisor.living())
        self._giving_way.saw(seen, self._known.ranks(), self._known.said_pid)
        return seen

    def _look(self, child: TrainingProcess, now_s: float, ask_kernel: bool) -> WorkerProgress:
        worker = child.spec.worker
        pid = self._pid(child)
        # The kernel tells a stop to the parent alone, and here the parent is a wrapper of the user's.
        is_wrapped = pid != child.process.pid
        return self._vitals.see(worker, pid, self._agent.journals.progress(worker), now_s, ask_kernel or is_wrapped)

    def govern_alone(self) -> None:
        """Follow the rules of torchrun, without a controller. A process that is done may leave, and a failure ends the machine."""
        holders = (
            Holder(c.spec.worker, known.rank, c.exit_code if c.gone.is_set() else None)
            for c in self._supervisor.children.values()
            if (known := self._known[c.spec.worker]).rank != NO_RANK and not c.fenced
        )
        verdict = judge(holders, self._known.finishing())
        for worker in verdict.may_finish:
            self._known[worker].excused = True
            self._agent.shims.send(worker, MayFinish())
        if verdict.stop is not None:
            self._agent.stop(verdict.stop)
