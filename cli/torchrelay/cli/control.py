"""A client of the job's controller."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from types import TracebackType

import grpc
import grpc.aio

from torchrelay.protocol import relay_pb2_grpc
from torchrelay.protocol.errors import ChannelClosedError, FatalError, TorchrelayError
from torchrelay.protocol.messages import (
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
        try:
            reply = await self._stub.Status(convert.to_proto(Empty()), timeout=CALL_TIMEOUT_S)
        except grpc.aio.AioRpcError as e:
            raise _as_ours(e, self._address) from e
        status: JobStatus = convert.from_proto(reply)
        return status

    async def lead(self, request: LeadRequest, timeout_s: float) -> LeadReply:
        try:
            reply = await self._stub.Lead(convert.to_proto(request), timeout=timeout_s)
        except grpc.aio.AioRpcError as e:
            raise _as_ours(e, self._address) from e
        answer: LeadReply = convert.from_proto(reply)
        return answer

    async def migrate(self, rank: int, reason: str) -> MigrateReply:
        request = convert.to_proto(MigrateRequest(rank, reason))
        try:
            reply = await self._stub.Migrate(request, timeout=CALL_TIMEOUT_S)
        except grpc.aio.AioRpcError as e:
            raise _as_ours(e, self._address) from e
        answer: MigrateReply = convert.from_proto(reply)
        return answer

    async def clear(self, subject: str, reason: str, check: bool = False) -> ClearReply:
        try:
            reply = await self._stub.Clear(
                convert.to_proto(ClearRequest(subject, reason, check)), timeout=CALL_TIMEOUT_S
            )
        except grpc.aio.AioRpcError as e:
            raise _as_ours(e, self._address) from e
        answer: ClearReply = convert.from_proto(reply)
        return answer

    async def quarantine(self, subject: str, reason: str) -> QuarantineReply:
        request = convert.to_proto(QuarantineRequest(subject, reason))
        try:
            reply = await self._stub.Quarantine(request, timeout=CALL_TIMEOUT_S)
        except grpc.aio.AioRpcError as e:
            raise _as_ours(e, self._address) from e
        answer: QuarantineReply = convert.from_proto(reply)
        return answer

    async def stop(self, signal_number: int) -> None:
        try:
            await self._stub.Stop(convert.to_proto(StopRequest(signal_number)), timeout=CALL_TIMEOUT_S)
        except grpc.aio.AioRpcError as e:
            raise _as_ours(e, self._address) from e

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
