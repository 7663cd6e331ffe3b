"""The agent's stream to the controller: mutual TLS, controllers that come late, go away and come back."""

from __future__ import annotations

import asyncio
import signal
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import pytest
from integration.agent.agent_harness import SECRET, TIMEOUT_S, Controller, agent, ends_of, serving
from support.ports import free_port

from torchrelay.agent.connections.session import Session
from torchrelay.controller.config import ControllerConfig
from torchrelay.controller.core import Core
from torchrelay.controller.serving.relay import Relay as JobRelay
from torchrelay.controller.serving.service import RelayService
from torchrelay.protocol import relay_pb2, relay_pb2_grpc
from torchrelay.protocol.messages import (
    AgentHello,
    Disabled,
    FetchJournal,
    FromWorker,
    JournalContent,
    MayFinish,
    Protect,
    RestartWorkers,
    StopJob,
    Taken,
    ToWorker,
    Warm,
    WorkerExited,
    WorkerInfo,
)
from torchrelay.protocol.security.tls import Credentials
from torchrelay.protocol.transport.convert import wrap

pytestmark = pytest.mark.core

SAYS = "from torchrelay.protocol.messages import Warm, Finishing"


class Relay:
    """A TCP relay between agent and controller that can be cut, with whatever is on its way."""

    def __init__(self, target_port: int) -> None:
        self._target_port = target_port
        self._pairs: set[asyncio.StreamWriter] = set()
        self._swallowed = asyncio.Event()
        self.swallows = self.swallows_orders = False
        """What the agent, or the controller, sends is written by it, and never arrives."""
        self.port = 0

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        there_reader, there_writer = await asyncio.open_connection("127.0.0.1", self._target_port)
        self._pairs |= {writer, there_writer}
        await asyncio.gather(self._pump(reader, there_writer, True), self._pump(there_reader, writer, False))

    async def swallow_more(self) -> None:
        """Returns once bytes that were sent after this call have been swallowed."""
        self._swallowed.clear()
        await asyncio.wait_for(self._swallowed.wait(), TIMEOUT_S)

    async def _pump(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, upward: bool) -> None:
        try:
            while data := await reader.read(1 << 16):
                if self.swallows if upward else self.swallows_orders:
                    self._swallowed.set()
                else:
                    writer.write(data)
        except ConnectionError:
            pass
        writer.close()

    def cut(self) -> None:
        self.swallows = self.swallows_orders = False
        for writer in self._pairs:
            writer.transport.abort()
        self._pairs.clear()


@asynccontextmanager
async def relaying(target_port: int) -> AsyncIterator[Relay]:
    relay = Relay(target_port)
    server = await asyncio.start_server(relay.serve, "127.0.0.1", 0)
    relay.port = server.sockets[0].getsockname()[1]
    try:
        yield relay
    finally:
        server.close()
        relay.cut()


def said(controller: Controller) -> list[str]:
    reports = (m.report for m in controller.received if isinstance(m, FromWorker))
    return [r.torch_version for r in reports if isinstance(r, Warm)]


def test_what_happens_before_the_controller_is_there_is_told_later(tmp_path: Path) -> None:
    async def scenario() -> None:
        port = free_port()
        async with agent(tmp_path, port, nproc_per_node=2) as node:
            node.tell("n0.w0", f"{SAYS}; link.send(Warm('early')); sys.exit(4)")
            controller = Controller()
            async with serving(controller, port):
                assert await controller.first(WorkerExited) == WorkerExited("n0.w0", 4, 0, False)
                assert said(controller) == ["early"]
                await controller.report(Disabled, "n0.w1")

    asyncio.run(scenario())


def test_a_controller_that_comes_back_hears_each_report_once_and_training_went_on(tmp_path: Path) -> None:
    async def scenario() -> None:
        controller = Controller()
        async with (
            serving(controller) as port,
            relaying(port) as relay,
            agent(tmp_path, relay.port, nproc_per_node=2) as node,
        ):
            await controller.report(Disabled, "n0.w0")
            await controller.report(Disabled, "n0.w1")
            pids = [w.pid for w in (await controller.hello()).workers]
            node.tell("n0.w0", f"{SAYS}; link.send(Warm('0')); link.send(Warm('1'))")
            await controller.first(FromWorker, report=Warm("1"))
            relay.swallows = True
            async with ends_of(pids[0]) as ended:
                node.tell("n0.w0", "journal.write_boundary(0, b'seen'); link.send(Warm('2')); os.kill(os.getpid(), 9)")
                await ended()
            await relay.swallow_more()
            relay.cut()
            assert await controller.first(WorkerExited) == WorkerExited("n0.w0", 137, signal.SIGKILL, False)
            assert said(controller) == ["0", "1", "2"]
            hellos = [m for m in controller.received if isinstance(m, AgentHello)]
            assert len(hellos) == controller.attached >= 2
            assert [w.pid for w in hellos[-1].workers] == pids
            controller.order(FetchJournal("n0.w0"))
            assert (await controller.first(JournalContent)).boundaries == {0: b"seen"}

    asyncio.run(scenario())


def test_a_controller_that_acknowledges_nothing_is_told_nothing_twice(tmp_path: Path) -> None:
    async def scenario() -> None:
        controller = Controller(acknowledges=False)
        async with serving(controller) as port, relaying(port) as relay, agent(tmp_path, relay.port) as node:
            node.tell("n0.w0", f"{SAYS}; link.send(Warm('0'))")
            await controller.first(FromWorker, report=Warm("0"))
            relay.cut()
            # What is written before the agent notices is lost with the stream, where nobody says what has arrived.
            await controller.until(lambda got: sum(isinstance(m, AgentHello) for m in got) >= 2)
            node.tell("n0.w0", "link.send(Warm('1'))")
            await controller.first(FromWorker, report=Warm("1"))
            assert said(controller) == ["0", "1"]

    asyncio.run(scenario())


def test_orders_reach_an_agent_that_came_back(tmp_path: Path) -> None:
    async def scenario() -> None:
        controller = Controller()
        async with serving(controller) as port, relaying(port) as relay, agent(tmp_path, relay.port) as node:
            await controller.report(Disabled, "n0.w0")
            relay.cut()
            await controller.until(lambda got: sum(isinstance(m, AgentHello) for m in got) >= 2)
            controller.order(StopJob(9, signal.SIGKILL, "enough"))
            assert (await node.ended())[0] == 9

    asyncio.run(scenario())


def test_an_agent_with_another_secret_is_refused_and_its_processes_run_on(tmp_path: Path) -> None:
    async def scenario() -> None:
        port = free_port()
        stranger = Controller()
        async with agent(tmp_path, port) as node:
            async with serving(stranger, port, secret=b"another secret of 32 bytes......"):
                node.tell("n0.w0", f"{SAYS}; link.send(Warm('through all of it'))")
                reached = asyncio.ensure_future(stranger.hello())
                await asyncio.wait((reached,), timeout=2)
                assert not reached.done()
                reached.cancel()
            right = Controller()
            async with serving(right, port, secret=SECRET):
                await right.first(FromWorker, report=Warm("through all of it"))
            assert stranger.received == []
            assert node.process.returncode is None

    asyncio.run(scenario())


def test_ranks_that_are_done_may_leave_when_the_controller_stays_away(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with agent(tmp_path, free_port(), nproc_per_node=2, spares=1, orphan_s=0.2) as node:
            waits = f"link.order = lambda o: os._exit(0 if type(o).__name__ == '{MayFinish.__name__}' else 9)"
            for worker in ("n0.w0", "n0.w1"):
                node.tell(worker, f"{SAYS}; {waits}; link.send(Finishing(5))")
            code, _, _ = await node.ended()
            assert code == 0

    asyncio.run(scenario())


def test_a_failed_rank_ends_a_node_whose_controller_stays_away(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with agent(tmp_path, free_port(), nproc_per_node=2, orphan_s=0.2) as node:
            node.tell("n0.w1", "sys.exit(3)")
            code, _, _ = await node.ended()
            assert code == 3

    asyncio.run(scenario())


def test_bad_configuration_and_a_missing_secret_end_with_exit_code_2(tmp_path: Path) -> None:
    async def scenario() -> None:
        for change, complaint in (
            ({"secret_file": str(tmp_path / "none")}, "none cannot be read"),
            ({"spares": "many"}, "spares"),
        ):
            folder = tmp_path / complaint[:6]
            folder.mkdir()
            async with agent(folder, 1, **change) as node:  # type: ignore[arg-type]  # of any of its fields
                code, out, err = await node.ended()
                assert (code, out) == (2, "")
                assert complaint in err
                assert "Traceback" not in err

    asyncio.run(scenario())


def test_a_stream_that_is_opened_anew_by_order_says_nothing_of_what_was_before(tmp_path: Path) -> None:
    async def scenario() -> None:
        controller = Controller(acknowledges=False)
        async with serving(controller) as port:
            orders: list[Any] = []

            def renew(order: Any) -> None:
                orders.append(order)
                session.send(FromWorker("n0.w0", Warm("of before")))
                session.renew()

            session = Session(
                Credentials.from_secret(SECRET, "agent"),
                f"127.0.0.1:{port}",
                lambda: AgentHello("n0", 0, "x", ()),
                renew,
            )
            task = asyncio.create_task(session.run())
            first = await controller.hello()
            controller.order(RestartWorkers("again"))
            await controller.until(lambda received: sum(isinstance(m, AgentHello) for m in received) == 2)
            session.send(FromWorker("n0.w1", Warm("of after")))
            await controller.first(FromWorker, worker="n0.w1")
            second = [m for m in controller.received if isinstance(m, AgentHello)][1]
            assert (second.session != first.session, second.first) == (True, first.first)
            assert orders == [RestartWorkers("again")]
            assert said(controller) == ["of after"]
            assert not task.done()
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    asyncio.run(scenario())


def test_an_order_that_was_on_its_way_when_the_stream_broke_arrives_once() -> None:
    async def scenario() -> None:
        orders: asyncio.Queue[Any] = asyncio.Queue()
        jobs = JobRelay(Core(ControllerConfig("r", 1, 1, "", "", "", "127.0.0.1", 29500), time.time))
        async with (
            serving(RelayService(jobs)) as port,
            relaying(port) as relay,
        ):
            session = Session(
                Credentials.from_secret(SECRET, "agent"),
                f"127.0.0.1:{relay.port}",
                lambda: AgentHello("n0", 0, "x", (WorkerInfo("n0.w0", 0, 1),)),
                orders.put_nowait,
            )
            task = asyncio.create_task(session.run())

            async def arrived(count: int) -> list[int]:
                found: list[int] = []
                while len(found) < count:
                    order = await asyncio.wait_for(orders.get(), TIMEOUT_S)
                    if isinstance(order, ToWorker) and order.worker == "to be counted":
                        assert isinstance(order.order, Protect)
                        found.append(int(order.order.reason))
                return found

            def say(number: int) -> None:
                jobs._streams.queue("n0", ToWorker("to be counted", Protect(False, str(number))))

            async def heard() -> None:
                """The controller has all that the agent has said so far."""
                session.send(FromWorker("n0.w0", Warm("2")))
                await asyncio.wait_for(session.told(), TIMEOUT_S)

            say(0)
            assert await arrived(1) == [0]
            await heard()
            relay.swallows_orders = True
            swallowed = asyncio.ensure_future(relay.swallow_more())
            say(1)
            say(2)
            await swallowed
            relay.cut()
            say(3)
            assert await arrived(3) == [1, 2, 3]
            relay.cut()
            say(4)
            assert await arrived(1) == [4]
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    asyncio.run(scenario())


def test_a_stream_on_which_the_controller_falls_silent_is_opened_anew() -> None:
    class FallsSilent(relay_pb2_grpc.RelayServicer):  # type: ignore[misc]  # generated without types
        """Answers nothing on its first stream, which stays open, and says an order on the second one."""

        def __init__(self) -> None:
            self.streams = 0

        async def Attach(
            self, requests: AsyncIterator[Any], context: Any
        ) -> AsyncIterator[Any]:  # the service's name for it
            self.streams += 1
            yield wrap(relay_pb2.ToAgent, Taken(0, "a", 0, answers_every_s=0.1))
            if self.streams > 1:
                yield wrap(relay_pb2.ToAgent, StopJob(0, signal.SIGTERM, "heard"))
            async for _ in requests:
                pass

    async def scenario() -> None:
        controller = FallsSilent()
        orders: asyncio.Queue[Any] = asyncio.Queue()
        async with serving(controller) as port:
            session = Session(
                Credentials.from_secret(SECRET, "agent"),
                f"127.0.0.1:{port}",
                lambda: AgentHello("n0", 0, "x", ()),
                orders.put_nowait,
            )
            task = asyncio.create_task(session.run())
            assert await asyncio.wait_for(orders.get(), TIMEOUT_S) == StopJob(0, signal.SIGTERM, "heard")
            assert controller.streams == 2
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    asyncio.run(scenario())


def test_an_order_that_is_no_message_opens_a_new_stream_and_ends_nothing() -> None:
    streams: list[int] = []

    async def attach(told: AsyncIterator[bytes], context: Any) -> AsyncIterator[bytes]:
        streams.append(1)
        yield wrap(relay_pb2.ToAgent, Taken(0)).SerializeToString()
        yield b"\xff" if len(streams) == 1 else wrap(relay_pb2.ToAgent, StopJob(0, 15, "heard")).SerializeToString()
        async for _ in told:
            pass

    async def scenario() -> None:
        orders: asyncio.Queue[Any] = asyncio.Queue()
        credentials, server = Credentials.from_secret(SECRET, "agent"), grpc.aio.server()
        handlers = {"Attach": grpc.stream_stream_rpc_method_handler(attach)}
        server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("torchrelay.v1.Relay", handlers),))
        port = server.add_secure_port("127.0.0.1:0", Credentials.from_secret(SECRET, "controller").server())
        await server.start()
        session = Session(credentials, f"127.0.0.1:{port}", lambda: AgentHello("n0", 0, "x", ()), orders.put_nowait)
        task = asyncio.create_task(session.run())
        try:
            assert await asyncio.wait_for(orders.get(), TIMEOUT_S) == StopJob(0, 15, "heard")
            assert len(streams) == 2
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
            await server.stop(0)

    asyncio.run(scenario())


def test_a_stream_stays_where_the_controller_answers_and_where_it_promises_nothing() -> None:
    async def scenario(promised_s: float) -> int:
        controller = Controller()
        async with serving(controller) as port:
            session = Session(
                Credentials.from_secret(SECRET, "agent"),
                f"127.0.0.1:{port}",
                lambda: AgentHello("n0", 0, "x", ()),
                lambda order: None,
            )
            task = asyncio.create_task(session.run())
            await controller.hello()
            controller.order(Taken(0, "a", 0, answers_every_s=promised_s))
            for _ in range(
                8
            ):  # without answers a promise of 1 s would have ended the stream after 3 of these 4 seconds
                await asyncio.sleep(0.5)
                if promised_s > 0:
                    controller.order(Taken(0))
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
        return controller.attached

    assert asyncio.run(scenario(promised_s=1.0)) == 1
    assert asyncio.run(scenario(promised_s=0.0)) == 1
