"""The Relay service: carries agents' reports to the core and its orders back, and tells watchers what happens."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
import time
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass
from typing import Any

import grpc
import grpc.aio

from torchrelay.controller.containment.memory_share import MemoryShare
from torchrelay.controller.containment.time_share import TimeShare, rest_s
from torchrelay.controller.core import Core
from torchrelay.controller.event_log import PROGRESS, EventLog
from torchrelay.protocol import relay_pb2, relay_pb2_grpc
from torchrelay.protocol.errors import FatalError, FrameError
from torchrelay.protocol.machine.pause import Pause
from torchrelay.protocol.messages import (
    AgentHello,
    CheckpointRequest,
    Empty,
    HealthSignals,
    JobEvent,
    MigrateReply,
    MigrateRequest,
    Taken,
    ToAgent,
)
from torchrelay.protocol.transport.convert import from_proto, to_proto, wrap
from torchrelay.protocol.transport.delivery import Inbox
from torchrelay.protocol.transport.incoming import received

log = logging.getLogger(__name__)

SHORT_BYTES, MOST_SHORT_S = 4096, 1e-3
"""A short word of progress from which nothing follows counts as this at most: the rest passed in waiting for a processor."""
MOST_ORDERS = 10_000
"""That wait for one agent: one that takes none is no agent of ours."""
_LAST = "job_finished"
_UNCOUNTED = ("agent_hello", PROGRESS)
"""Members of FromAgent that no number goes with (see `delivery`)."""


@dataclass
class _Cost:
    """Of one thing that was done for the job: what it counts as at most in the job's share."""

    most_s: float


class _Stream:
    """One agent's stream; `over` when the agent has closed it or a newer one has taken its place."""

    def __init__(self, inbox: Inbox) -> None:
        self.something = asyncio.Event()
        self.over = False
        self.inbox = inbox
        self.taken_said: int | None = None

    def due_taken(self) -> Taken | None:
        """What the agent has not been told yet of how much has arrived."""
        if self.taken_said == self.inbox.count:
            return None
        self.taken_said = self.inbox.count
        return Taken(self.inbox.count)

    def end(self) -> None:
        self.over = True
        self.something.set()


class _Watcher:
    """One stream of events; None in the queue is its end."""

    def __init__(self, without_progress: bool) -> None:
        self.queue: asyncio.Queue[JobEvent | None] = asyncio.Queue()
        self._without_progress = without_progress

    def tell(self, event: JobEvent, progress: JobEvent | None) -> None:
        """`progress`: the newest."""
        if self._without_progress:
            if event.name == PROGRESS:
                return
            if event.name == _LAST and progress is not None:
                self.queue.put_nowait(progress)
        self.queue.put_nowait(event)


class Relay(relay_pb2_grpc.RelayServicer):
    """Orders for an agent that is away are kept until it is back. `listener` hears every event, as watchers do.

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
        self._core, self._listener, self._failed, self._share = core, listener, failed, share
        self._refused, self._spent_s, self._paced_s = 0, 0.0, 0.0
        self._orders: dict[str, deque[ToAgent]] = {}
        self._streams: dict[str, _Stream] = {}
        self._inboxes: dict[str, Inbox] = {}
        self.told = EventLog()
        self._memory = MemoryShare(core, self._orders, self.told) if failed is not None else None
        self._watchers: set[_Watcher] = set()
        self._pause, self._wanted_s = Pause(), 0.0
        self._ended = asyncio.Event()
        self._nobody = asyncio.Event()
        self._nobody.set()
        self._failure: BaseException | None = None

    async def run(self) -> None:
        """Keeps time until the job has ended. Raises what the core raised, which is a bug, unless somebody else is told."""
        late_s = 0.0
        while not self._ended.is_set():
            with self._contained():
                self._core.tick(time.monotonic())
                self._flush()
            if not self._ended.is_set():
                now_s = time.monotonic()
                self._wanted_s = self._core.tick_every_s(now_s)
                pause_s = max(self._wanted_s, self._owed_s(late_s))
                await self._pause.sleep(pause_s)
                late_s = time.monotonic() - now_s - pause_s
        if self._failure is not None:
            raise self._failure

    async def all_gone(self, timeout_s: float) -> bool:
        """After the end: whether all agents and watchers have left within the time."""
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
        """Nothing is decided for this job any more."""
        self._core.set_aside(reason, time.monotonic())
        self._flush()

    def resign(self) -> None:
        """This controller ends, and the job does not: another one leads it, now or soon."""
        if not self._ended.is_set():
            self._ended.set()
            self._pause.end()
            for watcher in self._watchers:
                watcher.queue.put_nowait(None)
            for stream in self._streams.values():
                stream.end()

    def migrate(self, request: MigrateRequest) -> MigrateReply:
        reply = self._core.user_requests.migrate(request, time.monotonic())
        self._flush()
        return reply

    def save(self, request: CheckpointRequest) -> MigrateReply:
        reply = self._core.user_requests.save(request, time.monotonic())
        self._flush()
        return reply

    def want(self, rank: int, reason: str) -> None:
        """As `migrate`, whenever it can be."""
        with self._contained():
            self._core.user_requests.want(rank, reason, time.monotonic())
            self._flush()

    def evidence(self, node: str, signals: HealthSignals) -> None:
        """What a cluster says of a node."""
        with self._contained():
            self._core.evidence(node, signals, time.monotonic())
            self._flush()

    def lose(self, node: str, reason: str) -> None:
        """It is known from elsewhere that nothing of `node` lives."""
        with self._contained():
            self._core.lose(node, reason, time.monotonic())
            self._flush()

    def spares_changed(self) -> None:
        """What others make, or start again, is another than before."""
        with self._contained():
            self._core.spares_changed(time.monotonic())
            self._flush()

    def pace(self, seconds: float) -> None:
        """How often the job's agents are to tell while all goes well."""
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
        """All processes end; the agents come again, to whoever looks after the job then."""
        with self._contained():
            self._core.hand_over(reason)
            self._flush()

    def release(self, node: str, reason: str) -> None:
        """The agent of `node` is not needed any more."""
        with self._contained():
            self._core.nodes.release(node, reason, time.monotonic())
            self._flush()

    async def Attach(  # the service's name for it
        self, request_iterator: AsyncIterator[relay_pb2.FromAgent], context: grpc.aio.ServicerContext[Any, Any]
    ) -> AsyncIterator[relay_pb2.ToAgent]:
        first = await anext(request_iterator, None)
        hello = self._understood(context.peer(), first) if first is not None else None
        if not isinstance(hello, AgentHello):
            log.warning("refused a stream of %s: its first message is no AgentHello", context.peer())
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, "the first message of an agent is AgentHello")
            return
        stream = self._replace_stream(hello)
        with self._contained():
            self._core.attach(hello, time.monotonic())
            self._flush()
        reader = asyncio.create_task(self._read(hello.node, stream, request_iterator))
        reader.add_done_callback(self._reader_done)
        orders = self._orders.setdefault(hello.node, deque())
        try:
            while not stream.over:
                stream.something.clear()
                if taken := stream.due_taken():
                    yield wrap(relay_pb2.ToAgent, taken)
                while orders and not stream.over:
                    yield wrap(relay_pb2.ToAgent, orders[0])
                    orders.popleft()
                await stream.something.wait()
        finally:
            reader.cancel()
            if self._streams.get(hello.node) is stream:
                del self._streams[hello.node]
                with self._contained():
                    self._core.detach(hello.node, time.monotonic())
                    self._flush()
                self._note_leaving()

    async def Watch(
        self, request: relay_pb2.WatchRequest, context: grpc.aio.ServicerContext[Any, Any]
    ) -> AsyncIterator[relay_pb2.JobEvent]:
        watcher = _Watcher(request.without_progress)
        for event in self.told:
            watcher.queue.put_nowait(event)
        if self._ended.is_set() or request.until_now:
            watcher.queue.put_nowait(None)
        self._watchers.add(watcher)
        self._nobody.clear()
        try:
            while (event_or_end := await watcher.queue.get()) is not None:
                yield to_proto(event_or_end)
        finally:
            self._watchers.discard(watcher)
            self._note_leaving()

    async def Status(
        self, request: relay_pb2.Empty, context: grpc.aio.ServicerContext[Any, Any]
    ) -> relay_pb2.JobStatus:
        status: relay_pb2.JobStatus = to_proto(self._core.status(time.monotonic()))
        return status

    async def Migrate(
        self, request: relay_pb2.MigrateRequest, context: grpc.aio.ServicerContext[Any, Any]
    ) -> relay_pb2.MigrateReply:
        reply: relay_pb2.MigrateReply = to_proto(self.migrate(from_proto(request)))
        return reply

    async def Checkpoint(
        self, request: relay_pb2.CheckpointRequest, context: grpc.aio.ServicerContext[Any, Any]
    ) -> relay_pb2.MigrateReply:
        reply: relay_pb2.MigrateReply = to_proto(self.save(from_proto(request)))
        return reply

    async def Clear(
        self, request: relay_pb2.ClearRequest, context: grpc.aio.ServicerContext[Any, Any]
    ) -> relay_pb2.ClearReply:
        reply: relay_pb2.ClearReply = to_proto(self._core.user_requests.clear(from_proto(request)))
        self._flush()
        return reply

    async def Quarantine(
        self, request: relay_pb2.QuarantineRequest, context: grpc.aio.ServicerContext[Any, Any]
    ) -> relay_pb2.QuarantineReply:
        reply: relay_pb2.QuarantineReply = to_proto(
            self._core.user_requests.quarantine(from_proto(request), time.monotonic())
        )
        self._flush()
        return reply

    async def AddSpares(
        self, request: relay_pb2.AddSparesRequest, context: grpc.aio.ServicerContext[Any, Any]
    ) -> relay_pb2.AddSparesReply:
        reply: relay_pb2.AddSparesReply = to_proto(
            self._core.user_requests.add_spares(from_proto(request), time.monotonic())
        )
        self._flush()
        return reply

    async def Lead(
        self, request: relay_pb2.LeadRequest, context: grpc.aio.ServicerContext[Any, Any]
    ) -> relay_pb2.LeadReply:
        reply: relay_pb2.LeadReply = to_proto(self._core.lead(from_proto(request), time.monotonic()))
        self._flush()
        return reply

    async def Stop(
        self, request: relay_pb2.StopRequest, context: grpc.aio.ServicerContext[Any, Any]
    ) -> relay_pb2.Empty:
        self._core.user_requests.stop(request.signal, request.by)
        self._flush()
        empty: relay_pb2.Empty = to_proto(Empty())
        return empty

    def _replace_stream(self, hello: AgentHello) -> _Stream:
        if hello.node in self._streams:
            self._streams[hello.node].end()
        inbox = self._inboxes.setdefault(hello.node, Inbox())
        inbox.attach(hello)
        stream = self._streams[hello.node] = _Stream(inbox)
        self._nobody.clear()
        return stream

    async def _read(self, node: str, stream: _Stream, requests: AsyncIterator[relay_pb2.FromAgent]) -> None:
        try:
            async for packed in requests:
                if stream.over:
                    return
                self._take(node, stream, packed)
                if (wait_s := self._owed_s()) > 0:
                    await asyncio.sleep(wait_s)
        finally:
            stream.end()

    def _take(self, node: str, stream: _Stream, packed: relay_pb2.FromAgent) -> None:
        kind = packed.WhichOneof("kind")
        with self._contained(is_short=kind == PROGRESS and packed.ByteSize() <= SHORT_BYTES) as cost:
            message = self._understood(node, packed)
            if (kind in _UNCOUNTED or stream.inbox.is_new(message)) and message is not None:
                if self._core.receive(node, message, time.monotonic()):
                    cost.most_s = math.inf
                    self._flush()
                if self._memory is not None and kind != PROGRESS:
                    self._memory.take(packed.ByteSize(), len(self._core.job.nodes))
        if kind != PROGRESS:
            stream.something.set()

    def _understood(self, node: str, packed: relay_pb2.FromAgent) -> Any:
        try:
            return received(packed)
        except FrameError as e:
            self._refused += 1
            if self._refused & (self._refused - 1) == 0:  # whoever floods us floods no log
                log.warning("a message of %s is left out (so far %d of this job): %s", node, self._refused, e)
            return None

    @contextlib.contextmanager
    def _contained(self, is_short: bool = False) -> Iterator[_Cost]:
        """What goes wrong in the core is told to whoever looks after this job, and to nobody else.

        `is_short`: thousands come in a second, and to ask the kernel for this thread's time costs more than some of them.
        """
        clock = time.perf_counter if is_short else time.thread_time
        cost, began_s = _Cost(MOST_SHORT_S if is_short else math.inf), clock()
        try:
            yield cost
        except Exception as e:  # whatever it is, the next job must not notice
            if self._failed is None:
                raise
            self._failed(e)
        finally:
            self._spent_s += min(clock() - began_s, cost.most_s)

    def _owed_s(self, late_s: float = 0.0) -> float:
        """How long this job has to leave the processor to others."""
        spent_s, self._spent_s = self._spent_s, 0.0
        if self._share is None:
            return 0.0
        return max(self._share.spend(spent_s, time.monotonic()), rest_s(late_s))

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
        if not self._streams and not self._watchers:
            self._nobody.set()

    def _flush(self) -> None:
        orders, events = self._core.take()
        for node in self._core.take_hang_ups():
            if node in self._streams:
                self._streams[node].end()
        for node, order in orders:
            self._queue(node, order)
        for event in events:
            self._tell(event)
        if self._core.leading.stood_down:
            self.resign()
        if self._core.ended is not None and not self._ended.is_set():
            self._ended.set()
            for watcher in self._watchers:
                watcher.queue.put_nowait(None)
        if self._ended.is_set() or self._core.tick_every_s(time.monotonic()) < self._wanted_s:
            self._pause.end()

    def _queue(self, node: str, order: ToAgent) -> None:
        waiting = self._orders.setdefault(node, deque())
        waiting.append(order)
        if len(waiting) > MOST_ORDERS:
            waiting.clear()
            raise FatalError(f"the agent of {node} takes no orders: {MOST_ORDERS} wait for it")
        if node in self._streams:
            self._streams[node].something.set()

    def _tell(self, event: JobEvent) -> None:
        if self._listener is not None:
            self._listener(event)
        self.told.add(event)
        for watcher in self._watchers:
            watcher.tell(event, self.told.progress)
