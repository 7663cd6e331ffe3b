"""A client of the job's controller."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable
from types import TracebackType
from typing import Any, TypeVar

import grpc
import grpc.aio

from torchrelay.protocol import relay_pb2_grpc
from torchrelay.protocol.errors import ChannelClosedError, FatalError, TorchrelayError
from torchrelay.protocol.messages import (
    AddSparesReply,
    AddSparesRequest,
    ClearReply,
    ClearRequest,
    Empty,
    JobEvent,
    JobStatus,
    LeadReply,
    LeadRequest,
    MigrateReply,
    MigrateRequest,
    QuarantineReply,
    QuarantineRequest,
    StopRequest,
    WatchRequest,
)
from torchrelay.protocol.security.tls import Credentials
from torchrelay.protocol.transport import convert

CALL_TIMEOUT_S = 10.0
_Answer = TypeVar("_Answer")
_GONE = (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED, grpc.StatusCode.CANCELLED)


def _as_ours(error: grpc.aio.AioRpcError, address: str) -> TorchrelayError:
    text = f"controller at {address}: {error.details() or error.code().name}"
    return ChannelClosedError(text) if error.code() in _GONE else FatalError(text)


def target(host: str, port: int) -> str:
    """As gRPC and the agent's configuration write an address."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


class Control:
    """Calls to one controller. Each raises ChannelClosedError when it cannot be reached, FatalError when it fails."""

    def __init__(self, host: str, port: int, secret: bytes) -> None:
        self._address = target(host, port)
        self._channel = Credentials.from_secret(secret, "command line").channel(self._address)
        self._stub = relay_pb2_grpc.RelayStub(self._channel)

    async def __aenter__(self) -> Control:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        await self._channel.close(None)

    async def status(self) -> JobStatus:
        return await self._ask(self._stub.Status, Empty(), JobStatus)

    async def lead(self, request: LeadRequest, timeout_s: float) -> LeadReply:
        return await self._ask(self._stub.Lead, request, LeadReply, timeout_s)

    async def migrate(self, rank: int, reason: str) -> MigrateReply:
        return await self._ask(self._stub.Migrate, MigrateRequest(rank, reason), MigrateReply)

    async def clear(self, subject: str, reason: str, check: bool = False) -> ClearReply:
        return await self._ask(self._stub.Clear, ClearRequest(subject, reason, check), ClearReply)

    async def quarantine(self, subject: str, reason: str) -> QuarantineReply:
        return await self._ask(self._stub.Quarantine, QuarantineRequest(subject, reason), QuarantineReply)

    async def add_spares(self, count: int, node: str) -> AddSparesReply:
        return await self._ask(self._stub.AddSpares, AddSparesRequest(count, node), AddSparesReply)

    async def stop(self, signal_number: int) -> None:
        await self._ask(self._stub.Stop, StopRequest(signal_number), Empty)

    async def _ask(
        self,
        call: Callable[..., Awaitable[Any]],
        request: Any,
        answer: type[_Answer],
        timeout_s: float = CALL_TIMEOUT_S,
    ) -> _Answer:
        try:
            reply = convert.from_proto(await call(convert.to_proto(request), timeout=timeout_s))
        except grpc.aio.AioRpcError as e:
            raise _as_ours(e, self._address) from e
        assert isinstance(reply, answer)
        return reply

    async def watch(self, without_progress: bool, follow: bool = True) -> AsyncGenerator[JobEvent, None]:
        """Every event of the job from its start; without `follow` those so far. Ends when the controller ends the stream."""
        call = self._stub.Watch(convert.to_proto(WatchRequest(without_progress, not follow)), wait_for_ready=True)
        try:
            async for event in call:
                yield convert.from_proto(event)
        except grpc.aio.AioRpcError as e:
            raise _as_ours(e, self._address) from e
        finally:
            call.cancel()
