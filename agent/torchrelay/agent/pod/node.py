"""The processes of one pod: the kubelet starts and ends its training container."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import functools
import logging
import os
import signal
from dataclasses import dataclass, field
from typing import Any

from torchrelay.agent.agent import Agent, AgentPlace
from torchrelay.agent.connections.shim_server import ShimEvents
from torchrelay.agent.connections.standing import AgentStanding
from torchrelay.agent.figures import certificate_samples, session_samples
from torchrelay.agent.health.workers.process import activity_if_seen
from torchrelay.agent.health.workers.vitals import Vitals
from torchrelay.agent.journals.journal_keeper import JournalKeeper
from torchrelay.agent.pod.bystanders import Bystanders
from torchrelay.agent.pod.config import PodConfig
from torchrelay.agent.pod.disk import ON_DISK, Disk
from torchrelay.agent.pod.ended import LastWords, how_it_ended
from torchrelay.agent.pod.enrolment import PodCredentials
from torchrelay.agent.pod.launchers import Launchers, Marks
from torchrelay.agent.pod.monitor import PodMonitor
from torchrelay.agent.pod.restart_in_place import RestartsInPlace
from torchrelay.agent.pod.shims import PodShims, is_guest, shim_token
from torchrelay.protocol.health import kinds as k
from torchrelay.protocol.kube import local_ranks
from torchrelay.protocol.messages import (
    Ack,
    AgentHello,
    Armed,
    Assign,
    Begin,
    EndNow,
    FaultInjected,
    Fence,
    Finishing,
    FromWorker,
    HealthSignal,
    HealthSignals,
    Hello,
    MayFinish,
    Protect,
    RestartWorkers,
    ScriptFailed,
    StartWorker,
    StopJob,
    WorkerInfo,
    WorkerProgress,
    WorkerStarted,
)
from torchrelay.protocol.metrics.samples import Sample
from torchrelay.protocol.names import EXIT_NO_SPARE_LEFT, NO_RANK, WorkerId

log = logging.getLogger(__name__)

NO_NODE_RANK = -1


@dataclass
class _Process:
    """One life of the training container. `pid` is 0 where the containers of the pod do not share their processes."""

    worker: WorkerId
    pid: int
    spare: bool
    launch: dict[str, str]
    rank: int = NO_RANK
    begun: bool = False
    standing: AgentStanding = field(default_factory=AgentStanding)
    words: LastWords = field(default_factory=LastWords)
    gone: asyncio.Event = field(default_factory=asyncio.Event)


class PodNode:
    def __init__(self, config: PodConfig) -> None:
        self._config = config
        self._credentials = PodCredentials(config.enrolment, config.authority, config.token_file, config.authorities)
        self._processes: dict[WorkerId, _Process] = {}
        self._vitals = Vitals(activity_if_seen)
        self._bystanders = Bystanders(config.restarts)
        self._marks = Marks(config.run_folder)
        self.agent = self._make_agent()
        tell = self.agent.tell
        self._launchers = Launchers(self._credentials, config.controller, self.agent.shims.send)
        self._monitor = PodMonitor(config.host, os.environ, tell)
        self._restarts_in_place = RestartsInPlace(tell)
        self._disk = Disk(tell, config.kept, config.begun_again)
        self._leaving = asyncio.Event()
        self._any = asyncio.Event()

    def _make_agent(self) -> Agent:
        config = self._config
        place = AgentPlace(config.controller, config.host, config.host, config.metrics_port, config.orphan_s)
        events = ShimEvents(self._connected, self._reported, self._gone)
        token = shim_token(config.shim_token)
        shims = PodShims(
            config.socket, config.node, token, events, config.names_given, training_user=config.training_user
        )
        orders = {
            Fence: self._fence,
            StartWorker: lambda order: self._restarts_in_place.asked(order.rank),
            RestartWorkers: self._restart,
            **dict.fromkeys(ON_DISK, lambda order: self._disk.ordered(order)),
        }
        return Agent(place, self, self._credentials, shims, JournalKeeper(config.journals), orders)

    async def run(self) -> None:
        """Run until the job is over, or the pod ends."""
        self._marks.begin()
        parts = (self._credentials.run, self._leave, self._leave_bystanders, self._monitor.run)
        self.agent.open()
        try:
            await self.agent.begin(self._speak, *parts)
            stop = await self.agent.stopped
            log.info("ends: %s", stop.reason)
            self._marks.over(stop.exit_code)
            await self._end_processes(stop)
            await self.agent.take_leave()
        finally:
            await self.agent.close()
            self.agent.journals.remove()

    def samples(self) -> list[Sample]:
        """Return the samples of this pod's agent for Prometheus."""
        certificate = certificate_samples(self._credentials.leaf)
        return [*session_samples(self.agent.session, len(self._living())), *certificate]

    def leave(self) -> None:
        """Begin to leave: the pod is told to end."""
        self._leaving.set()

    async def _speak(self) -> None:
        await self._credentials.ready.wait()
        await self._any.wait()
        await self.agent.session.run()

    async def _leave(self) -> None:
        """Wait until the pod is told to end and its processes are gone, and a little longer. Then end.

        The kubelet ends the training container itself. Until then, and a little longer, other nodes may need this agent.
        """
        await self._leaving.wait()
        for process in list(self._processes.values()):
            await process.gone.wait()
        if self._processes and self.agent.session.connected:
            await asyncio.wait((self.agent.stopped,), timeout=self._config.leave_s)
        self._finish("the pod ends")

    async def _leave_bystanders(self) -> None:
        """End when the bystanders are gone, if no process of the job was here.

        This container would keep the pod from completing.
        """
        await self._bystanders.gone()
        if not self._processes:
            self._finish("nothing of a job runs here")

    def _finish(self, reason: str) -> None:
        self.agent.stop(StopJob(0, int(signal.SIGTERM), reason))

    async def _end_processes(self, stop: StopJob) -> None:
        """End the processes, and wait for those that end by themselves, as ranks that are done do.

        A process that runs unprotected is left alone.
        """
        waited_for = []
        for process in self._living():
            if process.spare or not process.begun or (process.standing.protected and stop.exit_code != 0):
                self._end(process, stop.exit_code)
            elif process.standing.protected:
                waited_for.append(process.gone.wait())
        with contextlib.suppress(asyncio.TimeoutError):
            await asyncio.wait_for(asyncio.gather(*waited_for), self._config.end_s)

    def _end(self, process: _Process, exit_code: int) -> None:
        self.agent.shims.send(process.worker, EndNow(exit_code))

    def _living(self) -> list[_Process]:
        return [p for p in self._processes.values() if not p.gone.is_set()]

    def hello(self) -> AgentHello:
        """Return the message that opens a stream to the controller: what is true of this pod now."""
        config = self._config
        copies = self.agent.copies
        return AgentHello(
            config.node,
            NO_NODE_RANK,
            config.host,
            tuple(map(_info, self._processes.values())),
            copies_port=copies.port,
            copies_token=copies.invitation,
            copies_of=copies.newest_gates,
        )

    def knows(self, worker: str) -> bool:
        """Return whether `worker` is a process of this pod."""
        return worker in self._processes

    def pid_of(self, worker: WorkerId) -> int | None:
        """Return the pid of a process that lives; None for any other one.

        The pid is 0 where the containers of the pod do not share their processes.
        """
        process = self._processes.get(worker)
        return None if process is None or process.gone.is_set() else process.pid

    def standing(self, worker: WorkerId) -> AgentStanding | None:
        """Return the standing of a process of this pod; None for any other one."""
        process = self._processes.get(worker)
        return process.standing if process is not None else None

    def standings(self) -> dict[WorkerId, AgentStanding]:
        """Return the standings of all processes of this pod."""
        return {worker: process.standing for worker, process in self._processes.items()}

    def forget(self, worker: WorkerId) -> None:
        """Drop a process's journals, unless it lives."""
        if all(p.worker != worker for p in self._living()):
            self.agent.journals.forget(worker)

    def _connected(self, worker: WorkerId, hello: Hello) -> None:
        if is_guest(hello):
            self._bystanders.add(hello.pid)
            self._launchers.connected(worker, hello)
            return
        rank = hello.launch.get("RANK", "")
        is_rank = not hello.spare and rank.isdigit()
        process = _Process(worker, hello.pid, hello.spare, hello.launch, int(rank) if is_rank else NO_RANK)
        if hello.again:
            process.begun = True
            process.standing.protected = hello.protected
            process.standing.generation = hello.generation
            process.standing.in_force = hello.in_force
            if process.rank != NO_RANK:  # one that is parked knows nothing of the others
                self._marks.protected(hello.protected)
            self._take_in(process, hello)
            return
        if not hello.spare and not (is_rank and hello.launch.get("WORLD_SIZE", "").isdigit()):
            # It is no part of a distributed job, as a program that prepares data is none: it goes on as if nothing were here.
            self._bystanders.add(hello.pid)
            self.agent.shims.send(worker, Begin(worker, str(self._config.journals / worker), False))
            return
        self._disk.process_begins()
        self.agent.tell(WorkerStarted(worker, process.rank, process.pid, process.launch))
        self._take_in(process, hello)

    def _take_in(self, process: _Process, hello: Hello) -> None:
        user = self.agent.shims.user_of(process.worker)
        self.agent.journals.create_for(process.worker, user)
        self._disk.make_room_for(user)
        self._processes[process.worker] = process
        self._any.set()
        self._monitor.uses(process.worker, hello.gpus, local_ranks.place(hello.launch))
        self.agent.tell(FromWorker(process.worker, hello))
        if process.pid and not _may_end(process.pid):
            self._tell_powerless(process.worker, user)
        self._restarts_in_place.connected(process.worker, process.pid)
        self.agent.look_now()

    def _tell_powerless(self, worker: WorkerId, user: int) -> None:
        """Tell the controller that the agent cannot end this process.

        The user of an image is not known when its pod is made, so the agent may be another user.
        """
        text = (
            f"training runs as user {user}, and the agent as user {os.getuid()}: it cannot end a process that hangs "
            "from outside; say runAsUser in the pod"
        )
        log.warning("%s", text)
        self.agent.tell(HealthSignals((HealthSignal(k.SOURCE_DEAD, "processes", worker, detail=text),)))

    def _reported(self, worker: WorkerId, report: Any) -> None:
        process = self._processes.get(worker)
        if process is None:
            return
        self.agent.reported(worker, report)
        if isinstance(report, FaultInjected):
            self.agent.shims.send(worker, Ack())
        elif isinstance(report, Finishing):
            process.words.finishing = True
        elif isinstance(report, ScriptFailed):
            process.words.failed = report.exit_code
        elif isinstance(report, Armed):
            process.rank = report.rank

    def _gone(self, worker: WorkerId) -> None:
        self._launchers.gone(worker)
        process = self._processes.get(worker)
        if process is not None and not process.gone.is_set():
            process.standing.exited = how_it_ended(worker, process.words)
            process.gone.set()
            log.info("%s is gone", worker)
            self.agent.tell(process.standing.exited)

    def prepared(self, worker: WorkerId, order: Any) -> Any:
        """Return what the process is told in the order's place; None: nothing."""
        process = self._processes[worker]
        if isinstance(order, Begin):
            return self._begins(process, order)
        if isinstance(order, Assign):
            process.rank = order.rank
            process.spare = False
            process.launch = order.env
            self._marks.protected(True)
        elif isinstance(order, Protect):
            self._marks.protected(order.on)
        elif isinstance(order, MayFinish):
            process.words.finishing = True
        return order

    def _begins(self, process: _Process, order: Begin) -> Begin | None:
        if process.begun and not (process.spare and order.env):
            return None  # a controller that is new to this job says it again
        if order.env:
            process.rank = int(order.env["RANK"])
            process.launch = order.env
        process.begun = True
        process.spare = order.spare
        process.standing.in_force = -1 if order.spare else 0
        process.rank = NO_RANK if order.spare else process.rank
        journal = str(self._config.journals / process.worker)
        return dataclasses.replace(order, journal=journal, kept=str(self._disk.kept))

    def _fence(self, order: Fence) -> None:
        """End a process by order, and by signal where it can be seen unless it begins again.

        The end of its connection tells that it is gone.
        """
        worker = WorkerId(order.worker)
        process = self._processes.get(worker)
        if process is None:
            log.error("a fence for %s, which is no process of this pod", worker)
        elif process.standing.exited is not None:
            self.agent.tell(dataclasses.replace(process.standing.exited, fenced=True))
        else:
            process.words.told_to_end = True
            code = how_it_ended(worker, process.words).exit_code
            if order.again:
                self.agent.shims.send(worker, EndNow(code, again=True))
                kill = functools.partial(self._kill, process, code)
                self.agent.keep(self._restarts_in_place.follow(process.pid, process.rank, process.gone, kill))
            else:
                self._kill(process, code)

    def _kill(self, process: _Process, exit_code: int) -> None:
        self._end(process, exit_code)
        if process.pid:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(process.pid, signal.SIGKILL)

    def _restart(self, order: RestartWorkers) -> None:
        """End the processes of this pod that have begun, and open the stream to the controller anew.

        Processes that start later are told of over the new stream, which knows nothing of those that ended.
        """
        log.info("the training process ends and may begin again: %s", order.reason)
        for process in self._living():
            if process.begun:
                self._kill(process, EXIT_NO_SPARE_LEFT)
        self._disk.job_begins_again()
        waiting = {worker: p for worker, p in self._processes.items() if not p.begun and not p.gone.is_set()}
        self._processes.clear()
        self._processes.update(waiting)
        self.agent.session.renew()

    def look(self, now_s: float) -> tuple[WorkerProgress, ...]:
        """Return how far the living processes are."""
        progress = self.agent.journals.progress
        return tuple(self._vitals.see(p.worker, p.pid, progress(p.worker), now_s, True) for p in self._living())

    def govern_alone(self) -> None:
        """Let processes leave that are done, while no controller is there. When all are gone, the agent ends too."""
        if self._processes and not self._living():
            self._finish("the training process is gone, and no controller is there")
        for process in self._living():
            if process.words.finishing:
                self.agent.shims.send(process.worker, MayFinish())


def _may_end(pid: int) -> bool:
    """Return whether this process has the right to end process `pid`. For a process that is gone, no right is needed."""
    try:
        os.kill(pid, 0)
    except PermissionError:
        return False
    except ProcessLookupError:
        pass
    return True


def _info(process: _Process) -> WorkerInfo:
    rank = NO_RANK if process.spare else process.rank
    info = process.standing.info(process.worker, rank, process.pid, process.launch)
    return info if process.begun else dataclasses.replace(info, generation=-1)
