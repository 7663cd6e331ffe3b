"""Carries reports to the core of one job and its orders back, tells listeners what happens, and keeps the time."""

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import aclosing
from typing import Any, TypeVar

import grpc

from torchrelay.controller.containment.containment import Containment
from torchrelay.controller.containment.memory_share import MemoryShare
from torchrelay.controller.containment.time_share import TimeShare
from torchrelay.controller.core import Core
from torchrelay.controller.serving.agent_streams import AgentStream, AgentStreams
from torchrelay.controller.serving.event_log import PROGRESS, EventLog
from torchrelay.controller.serving.watchers import Watchers
from torchrelay.protocol import relay_pb2
from torchrelay.protocol.errors import FrameError
from torchrelay.protocol.machine.pause import Pause
from torchrelay.protocol.messages import (
    AddSparesReply,
    AddSparesRequest,
    AgentHello,
    CheckpointRequest,
    ClearReply,
    ClearRequest,
    HealthSignals,
    JobEvent,
    JobStatus,
    LeadReply,
    LeadRequest,
    MachinesCompared,
    MigrateReply,
    MigrateRequest,
    OrdersTaken,
    Program,
    QuarantineReply,
    QuarantineRequest,
    Taken,
    ToAgent,
)
from torchrelay.protocol.transport.incoming import received

log = logging.getLogger(__name__)

Reply = TypeVar("Reply")

SHORT_BYTES = 4096
"""A progress message of this size, from which nothing follows, is short."""
_UNCOUNTED = ("agent_hello", "orders_taken", PROGRESS)
"""Members of FromAgent that no number goes with (see `delivery`)."""


class Relay:
    """Serves one job. `listener` hears every event, as watchers do.

    `failed(error)` is told what the core has raised, which is a bug, and may set the job aside; without it `run` raises that.
    `share`: of the processor, where other jobs have theirs. With `failed` it has a share of memory, too.
    """

    def __init__(
        self,
        core: Core,
        listener: Callable[[JobEvent], None] | None = None,
        failed: Callable[[Exception], None] | None = None,
        share: TimeShare | None = None,
    ) -> None:
        self._core = core
        self._listener = listener
        self._failed = failed
        self._containment = Containment(failed, share)
        self._contained = self._containment.contained
        self._streams = AgentStreams()
        self._watchers = Watchers()
        self._memory = MemoryShare(core, self._streams.orders, self.told) if failed is not None else None
        self._refused = 0
        self._paced_s = 0.0
        self._pause = Pause()
        self._wanted_s = 0.0
        self._ended = asyncio.Event()
        self._nobody = asyncio.Event()
        self._nobody.set()
        self._failure: BaseException | None = None

    @property
    def told(self) -> EventLog:
        """The events of this job, as far as they are kept."""
        return self._watchers.told

    async def run(self) -> None:
        """Keep time until the job has ended. Raises what the core raised, which is a bug, unless `failed` is told of it."""
        late_s = 0.0
        is_short = False
        while not self._ended.is_set():
            with self._contained(is_short) as cost:
                self._core.tick(time.monotonic())
                self._flush()
            is_short = cost.was_short
            if not self._ended.is_set():
                now_s = time.monotonic()
                self._wanted_s = self._core.tick_every_s(now_s)
                pause_s = max(self._wanted_s, self._containment.owed_s(late_s))
                await self._pause.sleep(pause_s)
                late_s = time.monotonic() - now_s - pause_s
        if self._failure is not None:
            raise self._failure

    async def all_gone(self, timeout_s: float) -> bool:
        """Wait, after the job's end, until all agents and watchers have left. Return whether they have within the time."""
        try:
            await asyncio.wait_for(self._nobody.wait(), timeout_s)
        except asyncio.TimeoutError:
            return False
        return True

    def end(self, exit_code: int, reason: str) -> None:
        with self._contained():
            self._core.end_job(exit_code, reason)
            self._flush()

    def set_aside(self, reason: str) -> None:
        """Decide nothing for this job any more."""
        self._core.set_aside(reason, time.monotonic())
        self._flush()

    def resign(self) -> None:
        """End this controller, and not the job: another controller leads it, now or soon."""
        if not self._ended.is_set():
            self._ended.set()
            self._pause.end()
            self._watchers.end()
            self._streams.hang_up_all()

    def migrate(self, request: MigrateRequest) -> MigrateReply:
        return self._answer(self._core.user_requests.migrate(request, time.monotonic()))

    def save(self, request: CheckpointRequest) -> MigrateReply:
        return self._answer(self._core.user_requests.save(request, time.monotonic()))

    def clear(self, request: ClearRequest) -> ClearReply:
        return self._answer(self._core.user_requests.clear(request))

    def quarantine(self, request: QuarantineRequest) -> QuarantineReply:
        return self._answer(self._core.user_requests.quarantine(request, time.monotonic()))

    def add_spares(self, request: AddSparesRequest) -> AddSparesReply:
        return self._answer(self._core.user_requests.add_spares(request, time.monotonic()))

    def lead(self, request: LeadRequest) -> LeadReply:
        return self._answer(self._core.lead(request, time.monotonic()))

    def compare(self, program: Program) -> MachinesCompared:
        return self._core.compare(program)

    def _answer(self, reply: Reply) -> Reply:
        """Carry out what follows from the request, and then answer."""
        self._flush()
        return reply

    def stop(self, signal_number: int, by: str) -> None:
        """End the job, as the user asks."""
        self._core.user_requests.stop(signal_number, by)
        self._flush()

    def status(self) -> JobStatus:
        return self._core.status(time.monotonic())

    def want(self, rank: int, reason: str) -> None:
        """Move a rank as `migrate` does, but as soon as it can be, even if not now."""
        with self._contained():
            self._core.user_requests.want(rank, reason, time.monotonic())
            self._flush()

    def evidence(self, node: str, signals: HealthSignals) -> None:
        """Take in what a cluster says of a node."""
        with self._contained():
            self._core.evidence(node, signals, time.monotonic())
            self._flush()

    def lose(self, node: str, reason: str) -> None:
        """Take note that nothing of `node` lives, as is known from elsewhere."""
        with self._contained():
            self._core.lose(node, reason, time.monotonic())
            self._flush()

    def spares_changed(self) -> None:
        """Take note that the spares which others make, or start again, have changed."""
        with self._contained():
            self._core.spares_changed(time.monotonic())
            self._flush()

    def pace(self, seconds: float) -> None:
        """Set how often the job's agents are to tell while all goes well."""
        if seconds != self._paced_s and not self._ended.is_set():
            self._paced_s = seconds
            with self._contained():
                self._core.pace.wish(seconds, time.monotonic())
                self._flush()

    def order(self, node: str, order: Any) -> None:
        with self._contained():
            self._core.outbox.to_agent(node, order)
            self._flush()

    def restart_workers(self, reason: str) -> None:
        """End all processes. The agents come again, to the run that looks after the job then."""
        with self._contained():
            self._core.hand_over(reason)
            self._flush()

    def release(self, node: str, reason: str) -> None:
        """Let the agent of `node` go, which is not needed any more."""
        with self._contained():
            self._core.nodes.release(node, reason, time.monotonic())
            self._flush()

    async def attach(
        self, hello: AgentHello, requests: AsyncIterator[relay_pb2.FromAgent]
    ) -> AsyncGenerator[Taken | ToAgent, None]:
        """Serve an agent's stream, after its first message: take what the agent says, and yield what it is told."""
        stream = self._streams.open(hello)
        self._nobody.clear()
        with self._contained():
            self._core.attach(hello, time.monotonic())
            self._flush()
        reader = asyncio.create_task(self._read(hello.node, stream, requests))
        reader.add_done_callback(self._reader_done)
        try:
            async with aclosing(self._streams.to_write(hello.node, stream)) as orders:
                async for order in orders:
                    yield order
        finally:
            reader.cancel()
            if self._streams.leave(hello.node, stream):
                with self._contained():
                    self._core.detach(hello.node, time.monotonic())
                    self._flush()
                self._note_leaving()

    async def watch(self, without_progress: bool, until_now: bool) -> AsyncGenerator[JobEvent, None]:
        """Yield all events so far, and, unless `until_now`, those to come."""
        self._nobody.clear()
        try:
            async with aclosing(self._watchers.events(without_progress, until_now)) as events:
                async for event in events:
                    yield event
        finally:
            self._note_leaving()

    async def _read(self, node: str, stream: AgentStream, requests: AsyncIterator[relay_pb2.FromAgent]) -> None:
        try:
            async for packed in requests:
                if stream.over:
                    return
                self._take(node, stream, packed)
                if (wait_s := self._containment.owed_s()) > 0:
                    await asyncio.sleep(wait_s)
        finally:
            stream.end()

    def _take(self, node: str, stream: AgentStream, packed: relay_pb2.FromAgent) -> None:
        kind = packed.WhichOneof("kind")
        with self._contained(is_short=kind == PROGRESS and packed.ByteSize() <= SHORT_BYTES) as cost:
            message = self.understood(node, packed)
            if (kind in _UNCOUNTED or stream.inbox.is_new(message)) and message is not None:
                if isinstance(message, OrdersTaken):
                    self._streams.taken(node, stream, message.count)
                elif self._core.receive(node, message, time.monotonic()):
                    cost.most_s = math.inf
                    self._flush()
                if self._memory is not None and kind != PROGRESS:
                    self._memory.take(packed.ByteSize(), len(self._core.job.nodes))
        if kind == PROGRESS:
            stream.heard(time.monotonic())
        elif kind not in _UNCOUNTED:
            stream.something.set()

    def understood(self, node: str, packed: relay_pb2.FromAgent) -> Any:
        """Return what an agent says. Return None, with a line in the log, where that is no message of torchrelay's."""
        try:
            return received(packed)
        except FrameError as e:
            self._refused += 1
            if self._refused & (self._refused - 1) == 0:  # whoever floods us floods no log
                log.warning("a message of %s is left out (so far %d of this job): %s", node, self._refused, e)
            return None

    def _reader_done(self, reader: asyncio.Task[None]) -> None:
        error = None if reader.cancelled() else reader.exception()
        # A stream that breaks is no failure of ours: the agent comes back, or its grace runs out.
        if isinstance(error, Exception) and not isinstance(error, grpc.RpcError) and self._failed is not None:
            self._failed(error)
        elif error is not None and not isinstance(error, grpc.RpcError):
            self._failure = error
            self._ended.set()
            self._pause.end()

    def _note_leaving(self) -> None:
        if not self._streams.is_any_open and not self._watchers.is_any_there:
            self._nobody.set()

    def _flush(self) -> None:
        orders, events = self._core.take()
        for node in self._core.take_hang_ups():
            self._streams.hang_up(node)
        for node, order in orders:
            self._streams.queue(node, order)
        for event in events:
            if self._listener is not None:
                self._listener(event)
            self._watchers.tell(event)
        if self._core.leading.stood_down:
            self.resign()
        if self._core.ended is not None and not self._ended.is_set():
            self._ended.set()
            self._watchers.end()
        if self._ended.is_set() or self._core.tick_every_s(time.monotonic()) < self._wanted_s:
            self._pause.end()
