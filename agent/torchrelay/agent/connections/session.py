"""The stream to the controller, opened anew whenever it breaks.

While the controller is away, all messages are kept for it, in order (see `delivery`). Of progress only the newest message is kept.
"""

from __future__ import annotations

import asyncio
import dataclasses
import logging
import random
import secrets
from collections.abc import Callable
from typing import Any, Protocol

import grpc.aio

from torchrelay.protocol import relay_pb2, relay_pb2_grpc
from torchrelay.protocol.errors import FrameError
from torchrelay.protocol.messages import AgentHello, OrdersTaken, Progress, Taken
from torchrelay.protocol.names import MAX_MESSAGE_BYTES
from torchrelay.protocol.transport.convert import from_proto, wrap
from torchrelay.protocol.transport.delivery import Inbox, SendQueue
from torchrelay.protocol.transport.telling import DEAF_AFTER_ANSWERS

log = logging.getLogger(__name__)

FIRST_BACKOFF_S = 0.1
MAX_BACKOFF_S = 2.0

_STREAM_ERRORS = (
    grpc.aio.AioRpcError,
    grpc.aio.InternalError,
    grpc.aio.UsageError,
    asyncio.InvalidStateError,  # the call had ended already
)


class Channels(Protocol):
    """The source of channels to the controller."""

    def channel(self, target: str) -> grpc.aio.Channel: ...


class Session:
    """The stream to the controller. `hello` says what is true when a stream opens; `on_order` gets each order, in order."""

    def __init__(
        self,
        credentials: Channels,
        controller: str,
        hello: Callable[[], AgentHello],
        on_order: Callable[[Any], None],
    ) -> None:
        self._credentials = credentials
        self._controller = controller
        self._hello = hello
        self._on_order = on_order
        self._outbox: SendQueue[relay_pb2.FromAgent] = SendQueue()
        self._orders = Inbox()
        self._orders_told: int | None = 0
        """How many orders the controller knows to have arrived; None: it has to be told again."""
        self._name = secrets.token_hex(8)
        self._progress: relay_pb2.FromAgent | None = None
        self._something = asyncio.Event()
        self._taken = asyncio.Event()
        self._closing = False
        self._renewed = asyncio.Event()
        self._heard = False
        self.connected = False
        self._away_since_s = asyncio.get_running_loop().time()

    @property
    def away_s(self) -> float:
        """Seconds since the controller was last connected; 0 while it is."""
        return 0.0 if self.connected else asyncio.get_running_loop().time() - self._away_since_s

    @property
    def waiting(self) -> int:
        """The number of reports that the controller has not taken yet."""
        return len(self._outbox)

    def send(self, message: Any) -> None:
        """Queue a message. Raises FrameError for one that can never be sent.

        It is kept until it was written, and until the controller has it where that answers. Of Progress only the newest is kept.
        """
        packed = wrap(relay_pb2.FromAgent, message)
        if packed.ByteSize() > MAX_MESSAGE_BYTES:
            raise FrameError(f"{type(message).__name__} of {packed.ByteSize()} bytes is larger than a message may be")
        if isinstance(message, Progress):
            self._progress = packed
        else:
            self._outbox.add(packed)
        self._something.set()

    async def told(self) -> None:
        """Wait until the controller has everything that was sent."""
        while not self._outbox.is_empty:
            self._taken.clear()
            await self._taken.wait()

    def renew(self) -> None:
        """Open the stream anew, as one that has said nothing yet, and drop all messages that are queued.

        What was said belongs to what is over.
        """
        self._outbox = SendQueue()
        self._progress = None
        self._name = secrets.token_hex(8)
        self._renewed.set()

    def turn_to(self, controller: str) -> None:
        """Turn to another controller, at HOST:PORT, and send it every message that the one before has not taken."""
        if controller != self._controller:
            self._controller = controller
            self._renewed.set()

    def close(self) -> None:
        """Let `run` return as soon as the controller has been told of everything."""
        self._closing = True
        self._something.set()

    async def run(self) -> None:
        """Keep a stream to the controller open until closed."""
        backoff_s = FIRST_BACKOFF_S
        while True:
            reason = await self._stream_once()
            if self._closing and self._outbox.is_empty:
                return
            if self.connected:
                self._lost(reason)
                backoff_s = FIRST_BACKOFF_S
            # A random share keeps the agents of a large job from coming back all at once.
            await asyncio.sleep(backoff_s * random.uniform(0.5, 1.0))
            backoff_s = min(backoff_s * 2, MAX_BACKOFF_S)

    def _lost(self, reason: str) -> None:
        self.connected = False
        self._away_since_s = asyncio.get_running_loop().time()
        log.warning("the controller at %s is away (%s); training goes on", self._controller, reason)

    async def _stream_once(self) -> str:
        """Run one stream to its end. Return the reason for the end. Each stream has a new channel, with a fresh certificate."""
        self._renewed.clear()
        promise: asyncio.Future[float] = asyncio.get_running_loop().create_future()
        async with self._credentials.channel(self._controller) as channel:
            stub = relay_pb2_grpc.RelayStub(channel)
            call = stub.Attach()
            writer = asyncio.ensure_future(self._write(call))
            reader = asyncio.ensure_future(self._read(call, promise))
            listener = asyncio.ensure_future(self._listen(promise))
            renewed = asyncio.ensure_future(self._renewed.wait())
            try:
                await asyncio.wait((writer, reader, listener, renewed), return_when=asyncio.FIRST_COMPLETED)
                if renewed.done():
                    return "it is opened anew"
                if reader.done():
                    return reader.result()
                if listener.done():
                    return listener.result()
                if not self._closing:
                    return writer.result()
                return await reader  # to hang up at once could cost what is still on its way
            finally:
                for task in (writer, reader, listener, renewed):
                    task.cancel()
                await asyncio.gather(writer, reader, listener, renewed, return_exceptions=True)
                call.cancel()

    async def _listen(self, promise: asyncio.Future[float]) -> str:
        """Wait until the controller is silent for longer than it promised on this stream. Without a promise, wait for ever.

        Missed answers are counted, not seconds: if this process was stopped for a while, that is one missed answer.
        """
        every_s = await promise
        missed = 0
        while missed < DEAF_AFTER_ANSWERS:
            self._heard = False
            await asyncio.sleep(every_s)
            missed = 0 if self._heard else missed + 1
        return f"it has answered nothing for {DEAF_AFTER_ANSWERS * every_s:.0f} s"

    async def _write(self, call: Any) -> str:
        try:
            self._outbox.rewind()
            self._orders_told = self._orders.count  # another controller counts otherwise, as its first Taken says
            hello = dataclasses.replace(self._hello(), session=self._name, first=self._outbox.first)
            await call.write(wrap(relay_pb2.FromAgent, hello))
            while True:
                while True:
                    if self._orders_told != self._orders.count:
                        self._orders_told = self._orders.count
                        await call.write(wrap(relay_pb2.FromAgent, OrdersTaken(self._orders_told)))
                    elif (due := self._outbox.next()) is not None:
                        await call.write(due[1])
                        self._outbox.wrote(due[0])
                        self._taken.set()
                    elif self._progress is not None:
                        progress = self._progress
                        self._progress = None
                        await call.write(progress)
                    else:
                        break
                if self._closing:
                    await call.done_writing()
                    return "closed"
                self._something.clear()
                await self._something.wait()
        except _STREAM_ERRORS as e:
            return _in_words(e)

    async def _read(self, call: Any, promise: asyncio.Future[float]) -> str:
        try:
            counts = False
            """Whether the controller numbers its orders."""
            while (packed := await call.read()) is not grpc.aio.EOF:
                self._heard = True
                if packed is None:  # gRPC says so of bytes that are no message
                    return "what it said is no message"  # a new stream begins with what has not arrived
                is_order = packed.WhichOneof("kind") != "taken"
                if is_order and counts:
                    is_new = self._orders.is_new(packed)
                    self._something.set()
                    if not is_new:
                        continue
                try:
                    order = from_proto(packed)
                except FrameError as e:
                    log.error("an order of the controller is not understood: %s", e)
                else:
                    self._arrived()  # not before it has answered: it may refuse
                    if isinstance(order, Taken):
                        self._outbox.taken(order.count)
                        self._taken.set()
                        if order.orders_session:
                            counts = True
                            self._orders.attach(order.orders_session, order.orders_first)
                            if order.answers_every_s > 0 and not promise.done():
                                promise.set_result(order.answers_every_s)
                            self._orders_told = None  # so that the controller keeps what it says from here on
                            self._something.set()
                    else:
                        self._on_order(order)
            return "it closed the stream"
        except _STREAM_ERRORS as e:
            return _in_words(e)

    def _arrived(self) -> None:
        if not self.connected:
            log.info("the controller at %s is there", self._controller)
        self.connected = True


def _in_words(error: BaseException) -> str:
    if isinstance(error, grpc.aio.AioRpcError):
        return f"{error.code().name}: {error.details()}"
    return str(error) or "the stream is closed"
