"""The Relay service: what agents and commands can ask over gRPC."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator
from contextlib import aclosing
from typing import Any

import grpc
import grpc.aio

from torchrelay.controller.serving.relay import Relay
from torchrelay.protocol import relay_pb2, relay_pb2_grpc
from torchrelay.protocol.messages import AgentHello, Empty
from torchrelay.protocol.transport.convert import from_proto, to_proto, wrap
from torchrelay.protocol.transport.incoming import received

log = logging.getLogger(__name__)


class RelayService(relay_pb2_grpc.RelayServicer):
    """Of one job. The methods have the names of the service's."""

    def __init__(self, relay: Relay) -> None:
        self._relay = relay

    async def Attach(
        self, request_iterator: AsyncIterator[relay_pb2.FromAgent], context: grpc.aio.ServicerContext[Any, Any]
    ) -> AsyncIterator[relay_pb2.ToAgent]:
        first = await anext(request_iterator, None)
        hello = self._relay.understood(context.peer(), first) if first is not None else None
        if not isinstance(hello, AgentHello):
            log.warning("refused a stream of %s: its first message is no AgentHello", context.peer())
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, "the first message of an agent is AgentHello")
            return
        async with aclosing(self._relay.attach(hello, request_iterator)) as orders:
            async for order in orders:
                yield wrap(relay_pb2.ToAgent, order)

    async def Watch(
        self, request: relay_pb2.WatchRequest, context: grpc.aio.ServicerContext[Any, Any]
    ) -> AsyncIterator[relay_pb2.JobEvent]:
        async with aclosing(self._relay.watch(request.without_progress, request.until_now)) as events:
            async for event in events:
                yield to_proto(event)

    async def Status(
        self, request: relay_pb2.Empty, context: grpc.aio.ServicerContext[Any, Any]
    ) -> relay_pb2.JobStatus:
        status: relay_pb2.JobStatus = to_proto(self._relay.status())
        return status

    async def Migrate(
        self, request: relay_pb2.MigrateRequest, context: grpc.aio.ServicerContext[Any, Any]
    ) -> relay_pb2.MigrateReply:
        reply: relay_pb2.MigrateReply = to_proto(self._relay.migrate(from_proto(request)))
        return reply

    async def Checkpoint(
        self, request: relay_pb2.CheckpointRequest, context: grpc.aio.ServicerContext[Any, Any]
    ) -> relay_pb2.MigrateReply:
        reply: relay_pb2.MigrateReply = to_proto(self._relay.save(from_proto(request)))
        return reply

    async def Clear(
        self, request: relay_pb2.ClearRequest, context: grpc.aio.ServicerContext[Any, Any]
    ) -> relay_pb2.ClearReply:
        reply: relay_pb2.ClearReply = to_proto(self._relay.clear(from_proto(request)))
        return reply

    async def Quarantine(
        self, request: relay_pb2.QuarantineRequest, context: grpc.aio.ServicerContext[Any, Any]
    ) -> relay_pb2.QuarantineReply:
        reply: relay_pb2.QuarantineReply = to_proto(self._relay.quarantine(from_proto(request)))
        return reply

    async def AddSpares(
        self, request: relay_pb2.AddSparesRequest, context: grpc.aio.ServicerContext[Any, Any]
    ) -> relay_pb2.AddSparesReply:
        reply: relay_pb2.AddSparesReply = to_proto(self._relay.add_spares(from_proto(request)))
        return reply

    async def Lead(
        self, request: relay_pb2.LeadRequest, context: grpc.aio.ServicerContext[Any, Any]
    ) -> relay_pb2.LeadReply:
        reply: relay_pb2.LeadReply = to_proto(self._relay.lead(from_proto(request)))
        return reply

    async def Compare(
        self, request: relay_pb2.Program, context: grpc.aio.ServicerContext[Any, Any]
    ) -> relay_pb2.MachinesCompared:
        reply: relay_pb2.MachinesCompared = to_proto(self._relay.compare(received(request)))
        return reply

    async def Stop(
        self, request: relay_pb2.StopRequest, context: grpc.aio.ServicerContext[Any, Any]
    ) -> relay_pb2.Empty:
        self._relay.stop(request.signal, request.by)
        empty: relay_pb2.Empty = to_proto(Empty())
        return empty
