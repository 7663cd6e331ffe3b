"""Machines of a job that exists on the wire only, with a rank each: a stream to a real controller, and answers at once.

What the controller asks of a rank is answered as a rank does that stands in the body of a step, so that a migration runs
through all of its phases and takes nothing but the time of the protocol.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from typing import Any

import grpc.aio

from torchrelay.protocol import messages as msg
from torchrelay.protocol import relay_pb2, relay_pb2_grpc
from torchrelay.protocol.errors import TorchrelayError
from torchrelay.protocol.names import NO_RANK
from torchrelay.protocol.security.tls import Credentials
from torchrelay.protocol.transport.convert import from_proto, wrap

HOST = "127.0.0.1"
STEP = 5
DIGESTS = {f"layer.{number}": "0123456789abcdef" for number in range(16)}
JOURNAL = b"\0" * 100_000


class PlayedMachine:
    """A machine with one process. `rank`: of the process; NO_RANK for a spare. `heard`: called with each order to the process."""

    def __init__(self, number: int, rank: int, world_size: int, heard: Callable[[Any], None]) -> None:
        self.name = f"machine-{number}:{number}"
        self._heard = heard
        self._world_size = world_size
        self._worker = f"{self.name}.1"
        self._rank = rank
        self._joins = self._is_gone = False
        self._queue: asyncio.Queue[Any] = asyncio.Queue()

    def tell(self, message: Any) -> None:
        self._queue.put_nowait(message)

    def lose(self) -> None:
        """Play that the process was killed."""
        self._is_gone = True
        self.tell(msg.WorkerExited(self._worker, 137, 9, False))

    def tell_step(self, count: int) -> None:
        """Tell how far the rank is: all ranks are at the same step. A spare waits."""
        seen = msg.WorkerProgress(self._worker, STEP, STEP, "body", False, count, "R")
        if self._rank == NO_RANK:
            seen = msg.WorkerProgress(self._worker, -1, 0, "set-up", False, 0, "S", 60.0, 60.0)
        self.tell(msg.Progress(() if self._is_gone else (seen,)))

    async def run(self, credentials: Credentials, target: str) -> None:
        """Play until cancelled or until the controller ends. Raises AioRpcError if the controller refuses it."""
        async with credentials.channel(target) as channel:
            call = relay_pb2_grpc.RelayStub(channel).Attach(self._told(), wait_for_ready=True)
            async for packed in call:
                self._answer(from_proto(packed))

    async def _told(self) -> AsyncIterator[relay_pb2.FromAgent]:
        workers = (msg.WorkerInfo(self._worker, self._rank, 1, {"WORLD_SIZE": str(self._world_size)}),)
        uid = self.name.rpartition(":")[2]
        yield wrap(relay_pb2.FromAgent, msg.AgentHello(self.name, -1, HOST, workers, uid))
        while True:
            yield wrap(relay_pb2.FromAgent, await self._queue.get())

    def _answer(self, order: Any) -> None:
        if isinstance(order, msg.FetchJournal):
            journals = {STEP - 1: JOURNAL, STEP: JOURNAL}
            self.tell(msg.JournalContent(order.worker, journals, {STEP - 1: b"gate"}, b"set-up"))
        elif isinstance(order, msg.Fence):
            self._is_gone = True
            self.tell(msg.WorkerExited(order.worker, 137, 9, True))
        elif isinstance(order, msg.ToWorker) and not self._is_gone:
            for report in self._reports(order.order):
                self.tell(msg.FromWorker(order.worker, report))
            self._heard(order.order)

    def _reports(self, order: Any) -> list[Any]:
        generation = getattr(order, "generation", 0)
        match order:
            case msg.Begin():
                return (
                    [msg.Warm("2.13")]
                    if self._rank == NO_RANK
                    else [msg.Armed(self._rank, self._world_size, "gloo", "")]
                )
            case msg.Protect(True):
                same = msg.ReplicaCheck(3, DIGESTS, tuple(DIGESTS))
                return [msg.Report("train.py", 7, 4096, 100, 1, (), (), (), STEP, True), same]
            case msg.CopyJournals(node=keeper) if keeper:
                return [msg.JournalsCopied(keeper, STEP)]
            case msg.Interrupt() if not self._joins:
                return [msg.Standing(generation, STEP, STEP, "body", "", HOST, 7000)]
            case msg.Interrupt() | msg.Assign():
                if isinstance(order, msg.Assign):
                    self._rank = order.rank
                    self._joins = True
                return [msg.Prepared(generation, HOST, 7001)]
            case msg.Serve():
                return [msg.Serving(generation, HOST, 9000)]
            case msg.Plan(action="enter" | "shadow"):
                return [msg.Transferred(generation, 4096, 2, 0.1)]
            case msg.Rebuild():
                return [msg.Rebuilt(generation, 0.1), msg.Verified(generation)]
            case msg.Commit():
                self._joins = False
                return [msg.Resumed(generation, 1), msg.FirstStep(generation, STEP + 1)]
        return []


@contextlib.asynccontextmanager
async def events_of(credentials: Credentials, target: str) -> AsyncIterator[AsyncIterator[msg.JobEvent]]:
    """Yield the events that the controller tells."""
    async with credentials.channel(target) as channel:
        call = relay_pb2_grpc.RelayStub(channel).Watch(relay_pb2.WatchRequest(), wait_for_ready=True)
        yield _unpacked(call)


async def _unpacked(call: Any) -> AsyncIterator[msg.JobEvent]:
    try:
        async for packed in call:
            yield from_proto(packed)
    except grpc.aio.AioRpcError as e:
        raise TorchrelayError(f"the controller tells no events: {e.code().name}: {e.details()}") from e
