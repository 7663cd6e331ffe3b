"""The Relay service where no job is: checks of machines ask it to be compared, and nothing else."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import grpc
import grpc.aio

from torchrelay.controller.machines.checks import ChecksMeeting
from torchrelay.protocol import relay_pb2, relay_pb2_grpc
from torchrelay.protocol.transport.convert import to_proto
from torchrelay.protocol.transport.incoming import received


class ChecksService(relay_pb2_grpc.RelayServicer):
    """Of one meeting. The method has the name of the service's; no other one is answered."""

    def __init__(self, meeting: ChecksMeeting) -> None:
        self._meeting = meeting
        self._over = asyncio.Event()

    async def Compare(
        self, request: relay_pb2.Program, context: grpc.aio.ServicerContext[Any, Any]
    ) -> relay_pb2.MachinesCompared:
        found = self._meeting.compare(received(request), time.monotonic())
        if self._meeting.is_over:
            self._over.set()
        reply: relay_pb2.MachinesCompared = to_proto(found)
        return reply

    async def over(self) -> None:
        """Wait until all checks have been told of each other, or `end` is called."""
        await self._over.wait()

    def end(self, exit_code: int, reason: str) -> None:
        """End the meeting as it is."""
        self._over.set()
