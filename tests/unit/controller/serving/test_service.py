"""The Relay service over real gRPC with mutual TLS, with the core behind it and no processes."""

from __future__ import annotations

import asyncio
import dataclasses
import json
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import grpc
import grpc.aio
import pytest

from torchrelay.controller import progress, settling
from torchrelay.controller.config import ControllerConfig, Policy
from torchrelay.controller.core import Core
from torchrelay.controller.serving.agent_streams import AgentStream
from torchrelay.controller.serving.relay import Relay
from torchrelay.controller.serving.service import RelayService
from torchrelay.protocol import messages as msg
from torchrelay.protocol import relay_pb2, relay_pb2_grpc
from torchrelay.protocol.security.tls import Credentials, make_server
from torchrelay.protocol.transport.convert import from_proto, to_proto, wrap
from torchrelay.protocol.transport.delivery import Inbox
from torchrelay.protocol.transport.telling import ANSWER_S

SECRET = b"0123456789abcdef0123456789abcdef"
CONFIG = ControllerConfig("r", 1, 2, "", "", "", "127.0.0.1", 29500)
WORKERS = (msg.WorkerInfo("n0.w0", 0, 1), msg.WorkerInfo("n0.w1", 1, 2))


class Bench:
    def __init__(self, relay: Relay, channel: grpc.aio.Channel) -> None:
        self.relay = relay
        self.stub = relay_pb2_grpc.RelayStub(channel)

    async def attach(self, session: str = "a", first: int = 0) -> Any:
        call = self.stub.Attach()
        await call.write(wrap(relay_pb2.FromAgent, msg.AgentHello("n0", 0, "h", WORKERS, session, first)))
        return call

    async def status(self) -> msg.JobStatus:
        found: msg.JobStatus = from_proto(await self.stub.Status(relay_pb2.Empty()))
        return found


@asynccontextmanager
async def bench(config: ControllerConfig = CONFIG) -> AsyncIterator[Bench]:
    relay = Relay(Core(config, time.time))
    server = make_server()
    relay_pb2_grpc.add_RelayServicer_to_server(RelayService(relay), server)
    port = server.add_secure_port("127.0.0.1:0", Credentials.from_secret(SECRET, "controller").server())
    await server.start()
    running = asyncio.create_task(relay.run())
    try:
        async with Credentials.from_secret(SECRET, "agent").channel(f"127.0.0.1:{port}") as channel:
            yield Bench(relay, channel)
    finally:
        relay.end(0, "the test is over")
        await running
        await server.stop(0)


def on_a_bench(test: Callable[[Bench], Awaitable[None]], config: ControllerConfig = CONFIG) -> None:
    async def run() -> None:
        async with bench(config) as b:
            await asyncio.wait_for(test(b), 30)

    asyncio.run(run())


async def say(call: Any, message: Any) -> None:
    await call.write(wrap(relay_pb2.FromAgent, message))


async def hear(call: Any) -> Any:
    return from_proto(await call.read())


async def hear_order(call: Any) -> Any:
    while isinstance(order := await hear(call), msg.Taken):
        continue
    return order


def test_orders_reach_the_agent_and_the_job_ends_with_everybody_told() -> None:
    async def test(b: Bench) -> None:
        call = await b.attach()
        await say(call, msg.FromWorker("n0.w0", msg.Disabled("no torch")))
        protect = await hear_order(call)
        assert protect == msg.ToWorker("n0.w0", msg.Protect(False, "rank 0: no torch"))
        await say(call, msg.WorkerExited("n0.w0", 3, 0, False))
        while not isinstance(stop := await hear_order(call), msg.StopJob):
            continue
        assert stop.exit_code == 3
        assert not await b.relay.all_gone(0.05)
        await call.done_writing()
        while (last := await call.read()) is not grpc.aio.EOF:
            assert isinstance(from_proto(last), msg.Taken)
        assert await b.relay.all_gone(10.0)

    on_a_bench(test)


def test_a_later_stream_repeats_nothing_and_takes_the_orders_that_were_waiting() -> None:
    async def test(b: Bench) -> None:
        call = await b.attach()
        assert (await hear(call)).count == 0
        await say(call, msg.FromWorker("n0.w0", msg.Disabled("no torch")))
        while await hear(call) != msg.Taken(1):
            continue
        call.cancel()
        again = await b.attach(first=0)
        assert (await hear(again)).count == 1
        await say(again, msg.FromWorker("n0.w0", msg.Disabled("no torch")))
        await say(again, msg.WorkerExited("n0.w1", 4, 0, False))
        while not isinstance(stop := await hear_order(again), msg.StopJob):
            assert isinstance(stop.order, msg.Protect)
        assert stop.exit_code == 4
        again.cancel()

    on_a_bench(test)


def test_orders_are_said_again_until_the_agent_has_said_that_it_has_them() -> None:
    def order(number: int) -> msg.ToWorker:
        return msg.ToWorker("n0.w0", msg.Protect(False, str(number)))

    async def test(b: Bench) -> None:
        call = await b.attach()
        begins = await hear(call)
        await say(call, msg.OrdersTaken(0))
        await say(call, msg.FromWorker("n0.w0", msg.Warm("2")))
        assert await hear(call) == msg.Taken(1)
        for number in range(3):
            b.relay.order("n0", order(number))
        assert [await hear_order(call) for _ in range(3)] == [order(0), order(1), order(2)]
        await say(call, msg.OrdersTaken(begins.orders_first + 1))
        b.relay.order("n0", order(3))
        assert await hear_order(call) == order(3)
        call.cancel()
        again = await b.attach()
        assert await hear(again) == msg.Taken(1, begins.orders_session, begins.orders_first + 1, ANSWER_S)
        assert [await hear_order(again) for _ in range(3)] == [order(1), order(2), order(3)]
        again.cancel()
        another = await b.attach(session="a process that began anew")
        begins = await hear(another)
        b.relay.order("n0", order(4))
        assert await hear_order(another) == order(4)
        another.cancel()

    on_a_bench(test)


def test_progress_is_answered_so_that_the_agent_knows_that_it_is_heard() -> None:
    async def test(b: Bench) -> None:
        call = await b.attach()
        assert (await hear(call)).answers_every_s == ANSWER_S
        await say(call, msg.Progress(()))
        assert await hear(call) == msg.Taken(0)
        call.cancel()

    on_a_bench(test)


def test_progress_is_answered_once_in_a_while() -> None:
    stream = AgentStream(Inbox())
    assert stream.due_taken() is not None
    answered_s = []
    for now_s in range(int(3 * ANSWER_S)):
        stream.heard(float(now_s))
        if stream.due_taken() is not None:
            answered_s.append(now_s)
    assert answered_s == [0, ANSWER_S, 2 * ANSWER_S]


def test_an_agent_that_never_says_what_it_has_is_told_nothing_twice() -> None:
    async def test(b: Bench) -> None:
        call = await b.attach()
        assert (await hear(call)).count == 0
        b.relay.order("n0", msg.TellAgain())
        assert await hear_order(call) == msg.TellAgain()
        b.relay.order("n0", msg.LookClosely(True))
        assert await hear_order(call) == msg.LookClosely(True)
        call.cancel()
        again = await b.attach()
        assert isinstance(await hear(again), msg.Taken), "from here on orders go to this stream"
        b.relay.order("n0", msg.LookClosely(False))
        while (order := await hear_order(again)) != msg.LookClosely(False):
            assert order == msg.LookClosely(True), "only the last one may be on its way still"
        again.cancel()

    on_a_bench(test)


def test_a_watcher_that_comes_late_hears_everything_from_the_start_to_the_end() -> None:
    async def test(b: Bench) -> None:
        call = await b.attach()
        await say(call, msg.FromWorker("n0.w0", msg.Disabled("no torch")))
        while (await b.status()).protection != "unprotected":
            continue
        watch = b.stub.Watch(relay_pb2.WatchRequest())
        await b.stub.Stop(to_proto(msg.StopRequest(2, "alice")))
        heard = [from_proto(event) async for event in watch]
        assert [event.name for event in heard] == ["job_started", "protection", "coverage", "job_finished"]
        assert json.loads(heard[-1].fields_json)["by"] == "alice"
        call.cancel()

    on_a_bench(test)


def test_a_watcher_that_wants_what_was_so_far_hears_that_and_no_more() -> None:
    async def test(b: Bench) -> None:
        call = await b.attach()
        await say(call, msg.FromWorker("n0.w0", msg.Disabled("no torch")))
        while (await b.status()).protection != "unprotected":
            continue
        watch = b.stub.Watch(to_proto(msg.WatchRequest(without_progress=True, until_now=True)))
        assert [from_proto(event).name async for event in watch] == ["job_started", "protection", "coverage"]
        call.cancel()

    on_a_bench(test)


@pytest.mark.parametrize("without_progress", [False, True])
def test_who_wants_no_progress_hears_of_it_once_at_the_end(
    without_progress: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(progress, "EVERY_S", 0.0)

    async def test(b: Bench) -> None:
        call = await b.attach()
        watch = b.stub.Watch(to_proto(msg.WatchRequest(without_progress)))
        heard = [from_proto(await watch.read())]
        for boundary in (1, 2):
            ranks = (msg.WorkerProgress(w.worker, boundary, 0, "body", False, boundary, "R") for w in WORKERS)
            await say(call, msg.Progress(tuple(ranks)))
            while (await b.status()).ranks[0].boundary != boundary:
                continue
        await b.stub.Stop(to_proto(msg.StopRequest(2)))
        while (event := await watch.read()) is not grpc.aio.EOF:
            heard.append(from_proto(event))
        boundaries = [json.loads(e.fields_json)["steps"] for e in heard if e.name == "progress"]
        assert boundaries[-1] == 2
        assert boundaries == ([2] if without_progress else [1, 2])
        assert heard[-1].name == "job_finished"
        call.cancel()

    on_a_bench(test)


def test_a_stream_that_does_not_begin_with_a_greeting_is_refused() -> None:
    async def test(b: Bench) -> None:
        call = b.stub.Attach()
        await say(call, msg.Progress(()))
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await call.read()
        assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT
        assert (await b.status()).ranks == ()

    on_a_bench(test)


def test_a_message_that_says_nothing_is_skipped() -> None:
    async def test(b: Bench) -> None:
        call = await b.attach()
        await call.write(relay_pb2.FromAgent())
        await say(call, msg.FromWorker("n0.w0", msg.Disabled("still here")))
        assert (await hear_order(call)).order == msg.Protect(False, "rank 0: still here")
        call.cancel()

    on_a_bench(test)


def test_migrate_answers_with_the_refusal() -> None:
    async def test(b: Bench) -> None:
        call = await b.attach()
        reply = from_proto(await b.stub.Migrate(to_proto(msg.MigrateRequest(7, "x"))))
        assert reply == msg.MigrateReply(False, "", "there is no rank 7; the job has ranks 0 to 1")
        call.cancel()

    on_a_bench(test)


def test_what_the_clock_has_to_decide_is_decided_although_nobody_looked_at_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(settling, "CALM_TICK_S", 1e6)

    async def test(b: Bench) -> None:
        call = await b.attach()
        await b.status()  # the controller waits for its next tick by now
        await say(call, msg.FromWorker("n0.w0", msg.ScriptFailed("ValueError", "no such file", 1, 5)))
        while not isinstance(stop := await hear_order(call), msg.StopJob):
            continue
        assert stop.exit_code == 1

    on_a_bench(test, dataclasses.replace(CONFIG, policy=Policy(failure_grace_s=0.1)))
