"""A launcher's question goes to the controller, until it is answered or nobody wants to know any more."""

from __future__ import annotations

import asyncio
from typing import Any

import grpc
import grpc.aio

from torchrelay.agent.pod.launchers import Launchers
from torchrelay.protocol import relay_pb2, relay_pb2_grpc
from torchrelay.protocol.messages import Begin, Hello, LaunchReply
from torchrelay.protocol.names import WorkerId
from torchrelay.protocol.transport.convert import to_proto

GUEST = WorkerId("train-1:0a1b2c3d.guest-1")
WITHIN_S = 20.0


class Controller(relay_pb2_grpc.RelayServicer):
    def __init__(self, refusals: int) -> None:
        self._refusals, self.asked = refusals, 0

    async def Launch(self, request: relay_pb2.LaunchRequest, context: Any) -> relay_pb2.LaunchReply:
        self.asked += 1
        if self.asked <= self._refusals:
            await context.abort(grpc.StatusCode.UNAVAILABLE, "none of its agents has come yet")
        reply: relay_pb2.LaunchReply = to_proto(LaunchReply(True, "its job trains"))
        return reply


class Credentials:
    def __init__(self) -> None:
        self.ready = asyncio.Event()

    def channel(self, target: str) -> grpc.aio.Channel:
        return grpc.aio.insecure_channel(target)


def test_the_controller_is_asked_again_until_it_answers_and_no_longer_than_the_launcher_lives() -> None:
    async def test() -> None:
        server, controller = grpc.aio.server(), Controller(refusals=2)
        relay_pb2_grpc.add_RelayServicer_to_server(controller, server)
        port = server.add_insecure_port("127.0.0.1:0")
        await server.start()
        answers: asyncio.Queue[tuple[WorkerId, Begin]] = asyncio.Queue()
        credentials = Credentials()
        launchers = Launchers(
            credentials,  # type: ignore[arg-type]  # a stand-in
            f"127.0.0.1:{port}",
            lambda worker, begin: answers.put_nowait((worker, begin)),
        )
        hello = Hello("train-1", "", 1, "3", False, launcher=True)
        try:
            launchers.connected(GUEST, hello)
            launchers.gone(GUEST)
            launchers.connected(GUEST, hello)
            assert controller.asked == 0  # there is no certificate yet
            credentials.ready.set()
            assert await asyncio.wait_for(answers.get(), WITHIN_S) == (GUEST, Begin(str(GUEST), "", True))
            assert controller.asked == 3
        finally:
            launchers.gone(GUEST)
            await server.stop(None)

    asyncio.run(test())
