"""The part that every agent has, wherever its processes come from.

It carries reports to the controller and orders to the processes. It decides nothing. `node.py` has the processes of a machine,
which it starts itself; `pod/node.py` has those of a pod, which the kubelet starts.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from torchrelay.agent.background import Background, Work, persistently
from torchrelay.agent.connections.cadence import Cadence
from torchrelay.agent.connections.session import Channels, Session
from torchrelay.agent.connections.shim_server import ShimServer
from torchrelay.agent.connections.standing import AgentStanding
from torchrelay.agent.journals.journal_copies import KeptJournals
from torchrelay.agent.journals.journal_keeper import JournalKeeper
from torchrelay.agent.processes.stack_probe import Explainer
from torchrelay.protocol.errors import FrameError
from torchrelay.protocol.machine.pause import Pause
from torchrelay.protocol.messages import (
    AgentHello,
    Explain,
    Explained,
    FetchJournal,
    ForgetJournals,
    FromWorker,
    Inherits,
    LookClosely,
    OrderFailed,
    Progress,
    StopJob,
    TellAgain,
    TellEvery,
    ToWorker,
    WorkerProgress,
)
from torchrelay.protocol.metrics.endpoint import Endpoint, endpoint_or_none
from torchrelay.protocol.metrics.samples import Sample
from torchrelay.protocol.names import WorkerId

log = logging.getLogger(__name__)

FLUSH_S = 5.0


@dataclass(frozen=True)
class AgentPlace:
    """The addresses of an agent.

    `host`: its address for other agents; `orphan_s`: after so long without a controller it acts alone.
    """

    controller: str
    host: str
    metrics_host: str
    metrics_port: int
    orphan_s: float
    takes_copies: bool = True
    """Whether this agent keeps copies of the journals of other nodes."""


class ProcessHost(Protocol):
    """The processes of one place (a machine or a pod), and what the agent does with them by itself."""

    def hello(self) -> AgentHello:
        """Return the message that opens a stream to the controller: what is true of this place now."""

    def samples(self) -> Iterable[Sample]:
        """Return the samples for Prometheus."""

    def knows(self, worker: str) -> bool:
        """Return whether `worker` is a process of this place, so that its journals are here."""

    def pid_of(self, worker: WorkerId) -> int | None:
        """Return the pid of a process that lives; None for any other one."""

    def standing(self, worker: WorkerId) -> AgentStanding | None:
        """Return the standing of a process of this place, whether it lives or not; None for any other one."""

    def standings(self) -> Mapping[WorkerId, AgentStanding]:
        """Return the standings of all processes that a controller which is new to the job has to hear of."""

    def prepared(self, worker: WorkerId, order: Any) -> Any:
        """Take note of an order. Return what the process is told in its place, or None if it is told nothing."""

    def forget(self, worker: WorkerId) -> None:
        """Drop what is kept of a process, if it has ended."""

    def look(self, now_s: float) -> tuple[WorkerProgress, ...]:
        """Return how far the living processes are."""

    def govern_alone(self) -> None:
        """Let the processes leave that are done, while no controller is there."""


class Agent:
    """The agent of one place. `orders`: orders that only this kind of place takes. `shims`: the socket of the processes."""

    def __init__(
        self,
        place: AgentPlace,
        host: ProcessHost,
        credentials: Channels,
        shims: ShimServer,
        journals: JournalKeeper,
        orders: Mapping[type, Callable[[Any], None]],
    ) -> None:
        self._place = place
        self._host = host
        self.shims = shims
        self.journals = journals
        self.session = Session(credentials, place.controller, host.hello, self.ordered)
        self.copies = KeptJournals(place.host, host.knows)
        self.stopped: asyncio.Future[StopJob] = asyncio.get_running_loop().create_future()
        """Done once the job is over here."""
        self._explainer = Explainer(
            shims.send, lambda worker, report: self.tell(FromWorker(worker, report)), self._job_pids
        )
        self._cadence = Cadence()
        self._pause = Pause()
        self._background = Background()
        self.keep = self._background.keep
        self._tasks: list[asyncio.Task[None]] = []
        self._metrics: Endpoint | None = None
        self._orders: dict[type, Callable[[Any], None]] = {
            ToWorker: self._pass_on,
            FetchJournal: self._tell_journal,
            ForgetJournals: self._forget_journals,
            StopJob: self.stop,
            TellAgain: lambda order: self.tell_again(),
            Inherits: self._inherit,
            LookClosely: self._look_closely,
            TellEvery: self._tell_every,
            **orders,
        }

    def open(self) -> None:
        """Let processes connect. Raises TorchrelayError where their socket cannot be made."""
        self.shims.start()
        place = self._place
        self._metrics = endpoint_or_none(place.metrics_host, place.metrics_port, lambda: list(self._host.samples()))

    async def begin(self, speak: Work, *parts: Work) -> None:
        """Begin all work that goes on until the end. `speak` opens the stream to the controller.

        Raises FatalError where copies of journals cannot be taken.
        """
        if self._place.takes_copies:
            await self.copies.start()
        self._tasks += [asyncio.create_task(persistently(w)) for w in (speak, self._watch_progress, *parts)]

    async def take_leave(self) -> None:
        """Send the controller all reports that are left, if it is connected."""
        self.session.close()
        if self.session.connected and (await asyncio.wait(self._tasks[:1], timeout=FLUSH_S))[1]:
            log.warning("the controller was not told of everything")

    async def close(self) -> None:
        """End all work, and close the socket of the processes."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        if self._metrics is not None:
            self._metrics.close()
        self.shims.close()
        await self.copies.close()

    def stop(self, order: StopJob) -> None:
        """End the job here. If it is called more than once, the first call counts."""
        if not self.stopped.done():
            self.stopped.set_result(order)

    def tell(self, message: Any) -> None:
        """Send a message to the controller: now, or once it is connected."""
        try:
            self.session.send(message)
        except FrameError as e:
            log.error("not sent: %s", e)

    def reported(self, worker: WorkerId, report: Any) -> None:
        """Pass a process's report to the controller, unless it is the answer to a question of this agent."""
        if isinstance(report, Explained):
            self._explainer.answered(worker, report)
            return
        self.tell(FromWorker(worker, report))
        if (standing := self._host.standing(worker)) is not None:
            standing.said.keep(report)

    def tell_again(self) -> None:
        """Tell the controller all that one which is new to the job has to hear of processes."""
        for worker, standing in self._host.standings().items():
            for message in standing.again(worker):
                self.tell(message)

    def look_now(self) -> None:
        """Look at the processes at once, because something has happened to one of them."""
        self._pause.end()

    def ordered(self, order: Any) -> None:
        """Carry out an order of the controller."""
        if (carry_out := self._orders.get(type(order))) is not None:
            carry_out(order)
        else:
            log.debug("%s is nothing that this agent does", type(order).__name__)

    def _job_pids(self) -> list[int]:
        """Return the processes of the job here: workers, this agent, and what has started it."""
        workers = (self._host.pid_of(worker) for worker in self._host.standings())
        return [*(pid for pid in workers if pid is not None), os.getpid(), os.getppid()]

    def _pass_on(self, order: ToWorker) -> None:
        worker = WorkerId(order.worker)
        told = order.order
        pid = self._host.pid_of(worker)
        standing = self._host.standing(worker)
        if pid is None or standing is None:
            log.debug("%s is not there to take %s", worker, type(told).__name__)
            return
        standing.ordered(told)
        if isinstance(told, Explain):
            self.keep(self._explainer.explain(worker, pid, told))
            return
        if (told := self._host.prepared(worker, told)) is None:
            return
        try:
            self.shims.send(worker, told)
        except FrameError as e:
            generation = getattr(told, "generation", 0)
            self.tell(FromWorker(worker, OrderFailed(generation, type(told).__name__, str(e))))

    def _tell_journal(self, order: FetchJournal) -> None:
        worker = WorkerId(order.worker)
        self.tell(self.journals.content(worker) if self._host.knows(worker) else self.copies.content(worker))

    def _forget_journals(self, order: ForgetJournals) -> None:
        self._host.forget(WorkerId(order.worker))
        self.copies.forget(order.worker)

    def _inherit(self, order: Inherits) -> None:
        if (standing := self._host.standing(WorkerId(order.worker))) is not None:
            standing.said.inherit(order.checks)

    def _look_closely(self, order: LookClosely) -> None:
        self._cadence.closely = order.on
        self.look_now()

    def _tell_every(self, order: TellEvery) -> None:
        self._cadence.take_pace(order.seconds)
        self.look_now()

    async def _watch_progress(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            now_s = loop.time()
            seen = self._host.look(now_s)
            if self._cadence.is_to_be_told(seen, now_s):
                self.tell(Progress(seen))
            if self.session.away_s > self._place.orphan_s:
                self._host.govern_alone()
            await self._pause.sleep(self._cadence.pause_s(seen))
