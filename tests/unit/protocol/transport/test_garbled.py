"""Bytes that are no message end nothing, over a real port."""

from __future__ import annotations

import asyncio
import time

import grpc
import grpc.aio
import pytest
from support.logged_errors import errors_of

from torchrelay.controller.config import ControllerConfig
from torchrelay.controller.core import Core
from torchrelay.controller.serving.relay import Relay
from torchrelay.controller.serving.service import RelayService
from torchrelay.protocol import messages as msg
from torchrelay.protocol import relay_pb2, relay_pb2_grpc
from torchrelay.protocol.security.tls import Credentials, make_server
from torchrelay.protocol.transport.convert import wrap

SECRET = b"0123456789abcdef0123456789abcdef"
GARBAGE = b"\xff\xff\xff\xff\x0f\x07no message"
CONFIG = ControllerConfig("r", 1, 1, "", "", "", "127.0.0.1", 29500)


@pytest.mark.parametrize("method", ["Migrate", "Watch", "Attach", "attached"])
def test_a_garbled_call_is_turned_away_and_the_next_one_is_served(
    method: str, caplog: pytest.LogCaptureFixture
) -> None:
    async def run() -> None:
        relay, server = Relay(Core(CONFIG, time.time)), make_server()
        relay_pb2_grpc.add_RelayServicer_to_server(RelayService(relay), server)
        port = server.add_secure_port("127.0.0.1:0", Credentials.from_secret(SECRET, "controller").server())
        await server.start()
        running = asyncio.create_task(relay.run())
        try:
            async with Credentials.from_secret(SECRET, "agent").channel(f"127.0.0.1:{port}") as channel:
                if method == "attached":
                    await _goes_on(channel)
                else:
                    with pytest.raises(grpc.aio.AioRpcError) as caught:
                        await _sent(channel, method)
                    assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT
                await relay_pb2_grpc.RelayStub(channel).Status(relay_pb2.Empty())
            assert not running.done()
        finally:
            relay.end(0, "the test is over")
            await running
            await server.stop(0)

    asyncio.run(run())
    assert errors_of(caplog) == []


async def _sent(channel: grpc.aio.Channel, method: str) -> None:
    path = f"/torchrelay.v1.Relay/{method}"
    if method == "Migrate":
        await channel.unary_unary(path)(GARBAGE)
    elif method == "Watch":
        await channel.unary_stream(path)(GARBAGE).read()
    else:
        call = channel.stream_stream(path)()
        await call.write(GARBAGE)
        await call.read()
        raise grpc.aio.AioRpcError(await call.code(), grpc.aio.Metadata(), grpc.aio.Metadata())


async def _goes_on(channel: grpc.aio.Channel) -> None:
    """What comes after garbage on the same stream is taken."""
    call = channel.stream_stream("/torchrelay.v1.Relay/Attach")()
    hello = msg.AgentHello("n0", 0, "h", (msg.WorkerInfo("n0.w0", 0, 1),), "session")
    for data in (hello, GARBAGE, msg.FromWorker("n0.w0", msg.Armed(0, 1, "gloo", ""))):
        await call.write(data if isinstance(data, bytes) else wrap(relay_pb2.FromAgent, data).SerializeToString())
    while True:
        order = relay_pb2.ToAgent.FromString(await call.read())
        if order.WhichOneof("kind") == "to_worker" and order.to_worker.order.WhichOneof("kind") == "protect":
            return
