"""The agent of one pod: its training process is started, and ended, by the kubelet; everything else is as in `agent.node`."""

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

from torchrelay.agent.connections.cadence import Cadence
from torchrelay.agent.connections.session import Session
from torchrelay.agent.connections.shim_server import ShimEvents
from torchrelay.agent.connections.standing import AgentStanding
from torchrelay.agent.figures import certificate_samples, session_samples
from torchrelay.agent.health.workers.process import activity_if_seen
from torchrelay.agent.health.workers.vitals import Vitals
from torchrelay.agent.journals.journal_copies import KeptJournals
from torchrelay.agent.journals.journal_keeper import JournalKeeper
from torchrelay.agent.node import persistently
from torchrelay.agent.pod.bystanders import Bystanders
from torchrelay.agent.pod.config import PodConfig
from torchrelay.agent.pod.disk import ON_DISK, Disk
from torchrelay.agent.pod.ended import LastWords, how_it_ended
from torchrelay.agent.pod.enrolment import PodCredentials
from torchrelay.agent.pod.launchers import Launchers, Marks
from torchrelay.agent.pod.monitor import PodMonitor
from torchrelay.agent.pod.restart_in_place import Anew
from torchrelay.agent.pod.shims import PodShims, is_guest, shim_token
from torchrelay.agent.processes.stack_probe import Explainer
from torchrelay.protocol.errors import FrameError
from torchrelay.protocol.kube import local_ranks
from torchrelay.protocol.machine.pause import Pause
from torchrelay.protocol.messages import (
    Ack,
    AgentHello,
    Armed,
    Assign,
    Begin,
    EndNow,
    Explain,
    Explained,
    FaultInjected,
    Fence,
    FetchJournal,
    Finishing,
    ForgetJournals,
    FromWorker,
    Hello,
    Inherits,
    LookClosely,
    MayFinish,
    OrderFailed,
    Progress,
    Protect,
    RestartWorkers,
    ScriptFailed,
    StartWorker,
    StopJob,
    TellAgain,
    TellEvery,
    ToWorker,
    WorkerInfo,
    WorkerStarted,
)
from torchrelay.protocol.metrics.endpoint import endpoint_or_none
from torchrelay.protocol.metrics.samples import Sample
from torchrelay.protocol.names import EXIT_NO_SPARE_LEFT, NO_RANK, WorkerId

log = logging.getLogger(__name__)

FLUSH_S = 5.0
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
        events = ShimEvents(self._connected, self._reported, self._gone)
        token = shim_token(config.shim_token)
        self._shims = PodShims(
            config.socket, config.node, token, events, config.names_given, training_user=config.training_user
        )
        self._session = Session(self._credentials, config.controller, self._hello, self._ordered)
        self._journals = JournalKeeper(config.journals)
        self._processes: dict[WorkerId, _Process] = {}
        self._copies = KeptJournals(config.host, lambda worker: worker in self._processes)
        self._vitals, self._cadence, self._pause = Vitals(activity_if_seen), Cadence(), Pause()
        self._explainer = Explainer(self._shims.send, lambda worker, report: self._send(FromWorker(worker, report)))
        self._launchers = Launchers(self._credentials, config.controller, self._shims.send)
        self._monitor = PodMonitor(config.host, os.environ, self._send)
        self._bystanders = Bystanders(config.restarts)
        self._marks = Marks(config.run_folder)
        self._anew = Anew(self._send)
        self._disk = Disk(self._send, config.kept, config.begun_again)
        self._kept: set[asyncio.Task[None]] = set()
        self._stop: asyncio.Future[StopJob] = asyncio.get_running_loop().create_future()
        self._leaving, self._any = asyncio.Event(), asyncio.Event()

    async def run(self) -> None:
        """Until the job is over, or the pod ends."""
        self._marks.begin()
        self._shims.start()
        metrics = endpoint_or_none(self._config.host, self._config.metrics_port, self._samples)
        await self._copies.start()
        work = (self._credentials.run, self._speak, self._watch_progress, self._leave, self._leave_bystanders)
        tasks = [asyncio.create_task(persistently(w)) for w in (*work, self._monitor.run)]
        try:
            stop = await self._stop
            log.info("ends: %s", stop.reason)
            self._marks.over(stop.exit_code)
            await self._end_processes(stop)
            self._session.close()
            if self._session.connected:
                await asyncio.wait(tasks[1:2], timeout=FLUSH_S)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            if metrics is not None:
                metrics.close()
            self._shims.close()
            await self._copies.close()
            self._journals.remove()

    def _samples(self) -> list[Sample]:
        certificate = certificate_samples(self._credentials.leaf)
        return [*session_samples(self._session, len(self._living())), *certificate]

    def leave(self) -> None:
        """The pod is told to end."""
        self._leaving.set()

    async def _speak(self) -> None:
        await self._credentials.ready.wait()
        await self._any.wait()
        await self._session.run()

    async def _leave(self) -> None:
        """The kubelet ends the training container itself; until then, and a little longer, others may need this agent."""
        await self._leaving.wait()
        for process in list(self._processes.values()):
            await process.gone.wait()
        if self._processes and self._session.connected:
            await asyncio.wait((self._stop,), timeout=self._config.leave_s)
        self._finish("the pod ends")

    async def _leave_bystanders(self) -> None:
        """Nothing of the job has been here: a container that stays would keep the pod from completing."""
        await self._bystanders.gone()
        if not self._processes:
            self._finish("nothing of a job runs here")

    def _finish(self, reason: str) -> None:
        if not self._stop.done():
            self._stop.set_result(StopJob(0, int(signal.SIGTERM), reason))

    async def _end_processes(self, stop: StopJob) -> None:
        """Ranks that are done end by themselves; whoever is not protected is none of our business."""
        waited_for = []
        for process in self._living():
            if process.spare or not process.begun or (process.standing.protected and stop.exit_code != 0):
                self._end(process, stop.exit_code)
            elif process.standing.protected:
                waited_for.append(process.gone.wait())
        with contextlib.suppress(asyncio.TimeoutError):
            await asyncio.wait_for(asyncio.gather(*waited_for), self._config.end_s)

    def _end(self, process: _Process, exit_code: int) -> None:
        self._shims.send(process.worker, EndNow(exit_code))

    def _living(self) -> list[_Process]:
        return [p for p in self._processes.values() if not p.gone.is_set()]

    def _hello(self) -> AgentHello:
        c, copies = self._config, self._copies
        workers = tuple(_info(p) for p in self._processes.values())
        return AgentHello(
            c.node,
            NO_NODE_RANK,
            c.host,
            workers,
            copies_port=copies.port,
            copies_token=copies.invitation,
            copies_of=copies.newest_gates,
        )

    def _send(self, message: Any) -> None:
        try:
            self._session.send(message)
        except FrameError as e:
            log.error("not sent: %s", e)

    def _connected(self, worker: WorkerId, hello: Hello) -> None:
        if is_guest(hello):
            self._bystanders.add(hello.pid)
            self._launchers.connected(worker, hello)
            return
        rank = hello.launch.get("RANK", "")
        is_rank = not hello.spare and rank.isdigit()
        process = _Process(worker, hello.pid, hello.spare, hello.launch, int(rank) if is_rank else NO_RANK)
        if hello.again:
            process.begun, process.standing.protected = True, hello.protected
            process.standing.generation, process.standing.in_force = hello.generation, hello.in_force
            if process.rank != NO_RANK:  # one that is parked knows nothing of the others
                self._marks.protected(hello.protected)
            self._take_in(process, hello)
            return
        if not hello.spare and not (is_rank and hello.launch.get("WORLD_SIZE", "").isdigit()):
            # No part of a distributed job, such as a program that prepares data: it goes on as if nothing were here.
            self._bystanders.add(hello.pid)
            self._shims.send(worker, Begin(worker, str(self._config.journals / worker), False))
            return
        self._disk.process_begins()
        self._send(WorkerStarted(worker, process.rank, process.pid, process.launch))
        self._take_in(process, hello)

    def _take_in(self, process: _Process, hello: Hello) -> None:
        user = self._shims.user_of(process.worker)
        self._journals.create_for(process.worker, user)
        self._disk.make_room_for(user)
        self._processes[process.worker] = process
        self._any.set()
        self._monitor.uses(process.worker, hello.gpus, local_ranks.place(hello.launch))
        self._send(FromWorker(process.worker, hello))
        self._anew.connected(process.worker, process.pid)
        self._pause.end()

    def _reported(self, worker: WorkerId, report: Any) -> None:
        process = self._processes.get(worker)
        if process is None:
            return
        if isinstance(report, Explained):
            self._explainer.answered(worker, report)
            return
        self._send(FromWorker(worker, report))
        process.standing.said.keep(report)
        if isinstance(report, FaultInjected):
            self._shims.send(worker, Ack())
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
            self._send(process.standing.exited)

    def _ordered(self, order: Any) -> None:  # noqa: C901 - one case for each order
        if isinstance(order, ToWorker):
            self._pass_on(WorkerId(order.worker), order.order)
        elif isinstance(order, Fence):
            self._fence(WorkerId(order.worker), order.again)
        elif isinstance(order, FetchJournal):
            worker = WorkerId(order.worker)
            self._send(self._journals.content(worker) if worker in self._processes else self._copies.content(worker))
        elif isinstance(order, ForgetJournals):
            if all(p.worker != order.worker for p in self._living()):
                self._journals.forget(WorkerId(order.worker))
            self._copies.forget(order.worker)
        elif isinstance(order, StopJob):
            if not self._stop.done():
                self._stop.set_result(order)
        elif isinstance(order, Inherits):
            if (process := self._processes.get(WorkerId(order.worker))) is not None:
                process.standing.said.inherit(order.checks)
        elif isinstance(order, TellAgain):
            for process in self._processes.values():
                for message in process.standing.again(process.worker):
                    self._send(message)
        elif isinstance(order, ON_DISK):
            self._disk.ordered(order)
        elif isinstance(order, StartWorker):
            self._anew.asked(order.rank)
        elif isinstance(order, RestartWorkers):
            self._restart(order)
        elif isinstance(order, LookClosely):
            self._cadence.closely = order.on
            self._pause.end()
        elif isinstance(order, TellEvery):
            self._cadence.take_pace(order.seconds)
            self._pause.end()

    def _pass_on(self, worker: WorkerId, order: Any) -> None:
        process = self._processes.get(worker)
        if process is None or process.gone.is_set():
            log.debug("%s is not there to take %s", worker, type(order).__name__)
            return
        process.standing.ordered(order)
        if isinstance(order, Explain):
            self._keep(asyncio.ensure_future(self._explainer.explain(worker, process.pid, order)))
            return
        if isinstance(order, Begin):
            if process.begun and not (process.spare and order.env):
                return  # a controller that is new to this job says it again
            if order.env:
                process.launch, process.rank = order.env, int(order.env["RANK"])
            process.begun, process.spare = True, order.spare
            process.standing.in_force = -1 if order.spare else 0
            order = dataclasses.replace(order, journal=str(self._config.journals / worker), kept=str(self._disk.kept))
            process.rank = NO_RANK if order.spare else process.rank
        elif isinstance(order, Assign):
            process.rank, process.spare, process.launch = order.rank, False, order.env
            self._marks.protected(True)
        elif isinstance(order, Protect):
            self._marks.protected(order.on)
        elif isinstance(order, MayFinish):
            process.words.finishing = True
        try:
            self._shims.send(worker, order)
        except FrameError as e:
            generation = getattr(order, "generation", 0)
            self._send(FromWorker(worker, OrderFailed(generation, type(order).__name__, str(e))))

    def _restart(self, order: RestartWorkers) -> None:
        """What lives of this pod ends; whoever starts after it is asked for by a stream that knows nothing of it."""
        log.info("the training process ends and may begin again: %s", order.reason)
        for process in self._living():
            if process.begun:
                self._kill(process, EXIT_NO_SPARE_LEFT)
        self._disk.job_begins_again()
        waiting = {worker: p for worker, p in self._processes.items() if not p.begun and not p.gone.is_set()}
        self._processes.clear()
        self._processes.update(waiting)
        self._session.renew()

    def _keep(self, task: asyncio.Task[None]) -> None:
        self._kept.add(task)
        task.add_done_callback(self._kept.discard)

    def _fence(self, worker: WorkerId, again: bool) -> None:
        """By order, and by signal where it can be seen unless it begins `again`; its connection's end tells that it is gone."""
        process = self._processes.get(worker)
        if process is None:
            log.error("a fence for %s, which is no process of this pod", worker)
        elif process.standing.exited is not None:
            self._send(dataclasses.replace(process.standing.exited, fenced=True))
        else:
            process.words.told_to_end = True
            code = how_it_ended(worker, process.words).exit_code
            if again:
                self._shims.send(worker, EndNow(code, again=True))
                kill = functools.partial(self._kill, process, code)
                self._keep(asyncio.ensure_future(self._anew.follow(process.pid, process.rank, process.gone, kill)))
            else:
                self._kill(process, code)

    def _kill(self, process: _Process, exit_code: int) -> None:
        self._end(process, exit_code)
        if process.pid:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(process.pid, signal.SIGKILL)

    async def _watch_progress(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            now_s = loop.time()
            seen = tuple(
                self._vitals.see(p.worker, p.pid, self._journals.progress(p.worker), now_s, True)
                for p in self._living()
            )
            if self._cadence.is_to_be_told(seen, now_s):
                self._send(Progress(seen))
            if self._session.away_s > self._config.orphan_s:
                self._govern_alone()
            await self._pause.sleep(self._cadence.pause_s(seen))

    def _govern_alone(self) -> None:
        """No controller is there: who is done may leave, and so may this agent, then."""
        if self._processes and not self._living():
            self._finish("the training process is gone, and no controller is there")
        for process in self._living():
            if process.words.finishing:
                self._shims.send(process.worker, MayFinish())


def _info(process: _Process) -> WorkerInfo:
    rank = NO_RANK if process.spare else process.rank
    generation = process.standing.generation if process.begun else -1
    return WorkerInfo(
        process.worker,
        rank,
        process.pid,
        process.launch,
        generation,
        process.standing.protected,
        process.standing.in_force,
        process.standing.gate_secret,
    )
