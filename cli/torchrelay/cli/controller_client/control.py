"""A client of the job's controller."""

from __future__ import annotations

import os
import pwd
from collections.abc import AsyncGenerator, Awaitable, Callable
from types import TracebackType
from typing import Any, TypeVar

import grpc
import grpc.aio

from torchrelay.protocol import relay_pb2_grpc
from torchrelay.protocol.errors import ChannelClosedError, FatalError, StrangerError, TorchrelayError
from torchrelay.protocol.messages import (
    AddSparesReply,
    AddSparesRequest,
    CheckpointRequest,
    ClearReply,
    ClearRequest,
    Empty,
    JobEvent,
    JobStatus,
    LeadReply,
    LeadRequest,
    MachinesCompared,
    MigrateReply,
    MigrateRequest,
    Program,
    QuarantineReply,
    QuarantineRequest,
    StopRequest,
    WatchRequest,
)
from torchrelay.protocol.security.tls import Credentials, is_of_a_stranger
from torchrelay.protocol.transport import convert

CALL_TIMEOUT_S = 10.0
_Answer = TypeVar("_Answer")
_GONE = (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED, grpc.StatusCode.CANCELLED)


def _as_ours(error: grpc.aio.AioRpcError, address: str) -> TorchrelayError:
    text = f"controller at {address}: {error.details() or error.code().name}"
    if is_of_a_stranger(error):
        return StrangerError(text)
    return ChannelClosedError(text) if error.code() in _GONE else FatalError(text)


def target(host: str, port: int) -> str:
    """Return the address as gRPC and the agent's configuration write it."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def local_user() -> str:
    """Return who asks: the name of this process's user, and with sudo also the user who called sudo."""
    try:
        name = pwd.getpwuid(os.getuid()).pw_name
    except KeyError:  # as in a container
        name = f"user {os.getuid()}"
    before = os.environ.get("SUDO_USER", "")
    return f"{name} (sudo by {before})" if before else name


class Control:
    """Calls to one controller. Each raises ChannelClosedError when it cannot be reached, FatalError when it fails."""

    def __init__(self, host: str, port: int, secret: bytes) -> None:
        self._address = target(host, port)
        self._by = local_user()
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

    async def compare(self, program: Program, timeout_s: float) -> MachinesCompared:
        return await self._ask(self._stub.Compare, program, MachinesCompared, timeout_s)

    async def migrate(self, rank: int, reason: str) -> MigrateReply:
        return await self._ask(self._stub.Migrate, MigrateRequest(rank, reason, self._by), MigrateReply)

    async def save(self, reason: str) -> MigrateReply:
        return await self._ask(self._stub.Checkpoint, CheckpointRequest(reason, self._by), MigrateReply)

    async def clear(self, subject: str, reason: str, check: bool = False) -> ClearReply:
        return await self._ask(self._stub.Clear, ClearRequest(subject, reason, check, self._by), ClearReply)

    async def quarantine(self, subject: str, reason: str) -> QuarantineReply:
        return await self._ask(self._stub.Quarantine, QuarantineRequest(subject, reason, self._by), QuarantineReply)

    async def add_spares(self, count: int, node: str) -> AddSparesReply:
        return await self._ask(self._stub.AddSpares, AddSparesRequest(count, node, self._by), AddSparesReply)

    async def stop(self, signal_number: int, *, of_own_command: bool = False) -> None:
        """Stop the job. `of_own_command`: the job's own command ends it, so nobody else has asked."""
        await self._ask(self._stub.Stop, StopRequest(signal_number, "" if of_own_command else self._by), Empty)

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
        """Yield every event of the job from its start, until the controller ends the stream. Without `follow` only those so far."""
        call = self._stub.Watch(convert.to_proto(WatchRequest(without_progress, not follow)), wait_for_ready=True)
        try:
            async for event in call:
                yield convert.from_proto(event)
        except grpc.aio.AioRpcError as e:
            raise _as_ours(e, self._address) from e
        finally:
            call.cancel()
