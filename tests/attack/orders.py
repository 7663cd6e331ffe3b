"""Orders to a live agent and its live process: by who is no controller, and by one that says absurd and damaged things."""

from __future__ import annotations

import asyncio
import functools
import signal
import typing
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
from attack.controlled import ReviewingApi
from attack.draw import Draw, Known
from attack.real_job import NAMESPACE, SCRIPT, RealPod
from attack.tally import Tally
from support.kube_cluster import SECRET
from support.ports import free_port
from support.training import SCRIPTS

from torchrelay.controller.kube.enrolment.identity import Enrolment
from torchrelay.protocol import messages as msg
from torchrelay.protocol import relay_pb2, relay_pb2_grpc
from torchrelay.protocol.errors import FrameError
from torchrelay.protocol.security.pod_tls import PodIdentity, SigningRequest, sign
from torchrelay.protocol.security.tls import Credentials, make_server
from torchrelay.protocol.transport.convert import from_proto, wrap

COMES_S, NEVER_S, ANSWERS_S = 40.0, 3.0, 20.0
KIND = "absurd order to an agent"
CRASHES = (-signal.SIGSEGV, -signal.SIGABRT, -signal.SIGBUS)
FAULT = "a part of the agent failed"
LAST = "asked-at-the-end.1"
LETS_NOBODY_LIVE = (msg.StopJob, msg.Follow)
"""The agent ends as it is told, or goes to another controller."""
ENDS = (msg.Fence, msg.RestartWorkers, msg.EndNow)
"""The process. They come last."""


class Ordering(relay_pb2_grpc.RelayServicer):
    """What an agent comes to: it hears the agent, and says what it is given to say, as bytes."""

    def __init__(self) -> None:
        self.hellos: list[msg.AgentHello] = []
        self.workers: list[str] = []
        self.journals: list[str] = []
        self.heard = 0
        self.protected = False
        self._says: asyncio.Queue[bytes] = asyncio.Queue()

    @property
    def left(self) -> int:
        """How much is still to be said."""
        return self._says.qsize()

    @property
    def is_through(self) -> bool:
        """Whether everything was said."""
        return not self.left

    def order(self, order: Any) -> None:
        self.say(wrap(relay_pb2.ToAgent, order).SerializeToString())

    def say(self, data: bytes) -> None:
        self._says.put_nowait(data)

    async def attach(self, told: AsyncIterator[bytes], context: Any) -> AsyncIterator[bytes]:
        listens = asyncio.ensure_future(self._listen(told))
        yield wrap(relay_pb2.ToAgent, msg.Taken(0)).SerializeToString()
        try:
            while True:
                yield await self._says.get()
        finally:
            listens.cancel()

    async def _listen(self, told: AsyncIterator[bytes]) -> None:
        async for data in told:
            self.heard += 1
            message = from_proto(relay_pb2.FromAgent.FromString(data))
            if isinstance(message, msg.AgentHello):
                self.hellos.append(message)
                self.workers += [w.worker for w in message.workers]
            elif isinstance(message, msg.WorkerStarted):
                self.workers.append(message.worker)
                self.order(msg.ToWorker(message.worker, msg.Begin(message.worker, "", False)))
            elif isinstance(message, msg.FromWorker) and isinstance(message.report, msg.Armed):
                self.order(msg.ToWorker(message.worker, msg.Protect(True, "all ranks are watched", bytes(32))))
            elif isinstance(message, msg.FromWorker) and isinstance(message.report, msg.Report):
                self.protected = True
            elif isinstance(message, msg.JournalContent):
                self.journals.append(message.worker)

    def handler(self) -> grpc.GenericRpcHandler:
        """Without protocol buffers in between, so that damaged ones can be said."""
        method = grpc.stream_stream_rpc_method_handler(self.attach)
        return grpc.method_handlers_generic_handler("torchrelay.v1.Relay", {"Attach": method})


def _credentials(kind: str) -> grpc.ServerCredentials:
    """`controller`: the real one's. `a pod`: of the right authority, for a pod. `foreign`: of another authority."""
    authority = Credentials.from_secret(SECRET, "controller")
    if kind == "controller":
        return authority.server()
    if kind == "foreign":
        return Credentials.from_secret(b"f" * 32, "controller").server()
    request = SigningRequest()
    leaf = request.leaf(sign(authority, request.pem(), PodIdentity(NAMESPACE, "evil", "uid-evil")))
    return grpc.ssl_server_credentials([(leaf.key, leaf.certificate)], authority.authority, True)


def all_kinds(draw: Draw, known: Known, burst: int) -> list[Any]:
    """Each order `burst` times, to the agent and to the process that it has."""
    found: list[Any] = []
    for kind in typing.get_args(msg.ToAgent):
        if kind not in (msg.ToWorker, *LETS_NOBODY_LIVE):
            found += [draw.message(kind, known) for _ in range(burst)]
    for kind in typing.get_args(msg.ShimOrder):
        found += [msg.ToWorker(draw.chance.choice(known.workers), draw.message(kind, known)) for _ in range(burst)]
    draw.chance.shuffle(found)
    return sorted(found, key=lambda order: isinstance(_inner(order), ENDS))


def _inner(order: Any) -> Any:
    return order.order if isinstance(order, msg.ToWorker) else order


class LiveAgent:
    """An agent, and a process that has come to it, at a controller of ours."""

    def __init__(self, folder: Path, kind: str, tally: Tally) -> None:
        self.ordering, self._kind, self._tally = Ordering(), kind, tally
        self._folder = folder
        self._servers: list[Any] = []

    async def __aenter__(self) -> LiveAgent:
        ports = {"relay": free_port(), "enrol": free_port()}
        relay, enrol = grpc.aio.server(), make_server()  # ours leaves out what cannot be read
        relay.add_generic_rpc_handlers((self.ordering.handler(),))
        relay.add_secure_port(f"127.0.0.1:{ports['relay']}", _credentials(self._kind))
        authority = Credentials.from_secret(SECRET, "controller")
        relay_pb2_grpc.add_EnrolmentServicer_to_server(Enrolment(ReviewingApi(), authority), enrol)  # type: ignore[arg-type]  # a stand-in
        enrol.add_secure_port(f"127.0.0.1:{ports['enrol']}", authority.server(False))
        self._servers = [relay, enrol]
        for server in self._servers:
            await server.start()
        made = {"name": f"live-{self._kind.replace(' ', '-')}", "uid": "uid-live"}
        out = self._folder / f"out-{made['name']}"
        out.mkdir()
        environ = {"RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
        environ |= {"LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "1", "OMP_NUM_THREADS": "1", "STEP_S": "0.05"}
        self.pod = RealPod(self._folder / made["name"], made, ports, [str(SCRIPTS / SCRIPT), str(out), "60"], environ)
        return self

    async def __aexit__(self, *_: object) -> None:
        self.pod.end()
        for server in self._servers:
            await server.stop(0)

    async def until(self, true: Any, within_s: float) -> bool:
        end_s = asyncio.get_running_loop().time() + within_s
        while not true():
            if asyncio.get_running_loop().time() > end_s:
                return False
            await asyncio.sleep(0.05)  # other processes tell nobody what they do
        return True


async def _stranger(folder: Path, kind: str, tally: Tally) -> None:
    """Who is not the controller hears nothing of an agent."""
    async with LiveAgent(folder, kind, tally) as live:
        enrolled = functools.partial(_has_certificate, live)
        if not await live.until(enrolled, COMES_S):
            tally.fail(f"the agent has got no certificate: {live.pod.said()}")
        tally.sent(f"a controller with a certificate of {kind}")
        if await live.until(lambda: live.ordering.hellos, NEVER_S):
            tally.fail(f"an agent takes orders of {kind}: {live.ordering.hellos}")


def _has_certificate(live: LiveAgent) -> bool:
    return (live.pod.folder / "authorities").exists()


async def _absurd(folder: Path, draw: Draw, burst: int, tally: Tally) -> None:
    """The agent lives, whatever its controller says, and goes on to speak."""
    async with LiveAgent(folder, "controller", tally) as live:
        ordering = live.ordering
        if not await live.until(lambda: ordering.protected, COMES_S):
            tally.fail(f"no process has come to train, after {ordering.heard} messages of the agent: {live.pod.said()}")
            return
        known = Known(tuple(dict.fromkeys((*ordering.workers, "nobody.1"))))
        for order in all_kinds(draw, known, burst):
            tally.sent(KIND)
            try:
                data = wrap(relay_pb2.ToAgent, order).SerializeToString()
            except FrameError as e:
                tally.refuse(KIND, f"{type(_inner(order)).__name__}: {e}")
                continue
            ordering.say(draw.damaged(data) if draw.chance.random() < 0.2 else data)
        last = wrap(relay_pb2.ToAgent, msg.FetchJournal(LAST)).SerializeToString()

        def answers() -> bool:
            if (
                ordering.is_through
            ):  # an agent that met a damaged order has opened a new stream, and lost what was said on the old
                ordering.say(last)
            return LAST in ordering.journals

        # Each damaged order costs a stream, so many of them take longer than any one answer may.
        while (left := ordering.left) and await live.until(lambda before=left: ordering.left < before, ANSWERS_S):
            pass
        if not await live.until(answers, ANSWERS_S):
            tally.fail(
                f"the agent does not answer any more, its exit code is {live.pod.agent.poll()}: {live.pod.said()}"
            )
        if FAULT in (live.pod.folder / "said").read_text():
            tally.fail(f"a fault of the agent, contained: {live.pod.said()}")
        code = live.pod.rank.poll()
        tally.refuse(KIND, f"its process {'goes on' if code is None else f'has ended with {code}'}")
        if code in CRASHES:
            tally.fail(f"the process has crashed, with {code}: {live.pod.said()}")


async def attack_orders(folder: Path, burst: int, seed: int, tally: Tally) -> None:
    """To a live agent and the live process that it has."""
    draw = Draw(f"{seed}/orders")
    tasks = [_stranger(folder, kind, tally) for kind in ("a pod", "foreign")]
    await asyncio.gather(*tasks, _absurd(folder, draw, burst, tally))
