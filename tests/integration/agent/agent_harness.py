"""A real agent process, and in the test a small controller that only writes down what it is told."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, TypeVar

from torchrelay.protocol import relay_pb2, relay_pb2_grpc
from torchrelay.protocol.messages import AgentHello, Disabled, FromWorker, Progress, Taken
from torchrelay.protocol.security.tls import Credentials, make_server
from torchrelay.protocol.transport.convert import from_proto, wrap
from torchrelay.protocol.transport.delivery import Inbox

SECRET = b"0123456789abcdef0123456789abcdef"
TIMEOUT_S = 60.0
T = TypeVar("T")

ENTRY = ("-m", "torchrelay.agent")
FAKE_WORKER = Path(__file__).with_name("fake_worker.py")


class Controller(relay_pb2_grpc.RelayServicer):  # type: ignore[misc]  # generated without types
    """`received` grows with every message; `orders` go to the agent that is attached."""

    def __init__(self, *, acknowledges: bool = True) -> None:
        self._inbox = Inbox()
        self._acknowledges = acknowledges
        self.received: list[Any] = []
        self.attached = 0
        self._changed = asyncio.Condition()
        self._orders: asyncio.Queue[Any] = asyncio.Queue()

    async def Attach(self, requests: AsyncIterator[Any], context: Any) -> None:
        self.attached += 1
        sender = asyncio.ensure_future(self._send(context))
        try:
            async for packed in requests:
                message = from_proto(packed)
                if isinstance(message, AgentHello):
                    self._inbox.attach(message.session, message.first)
                if self._acknowledges and not self._inbox.is_new(message):
                    continue
                async with self._changed:
                    self.received.append(message)
                    self._changed.notify_all()
                if self._acknowledges and not isinstance(message, Progress):
                    self.order(Taken(self._inbox.count))
        finally:
            sender.cancel()

    async def _send(self, context: Any) -> None:
        while True:
            await context.write(wrap(relay_pb2.ToAgent, await self._orders.get()))

    def order(self, message: Any) -> None:
        self._orders.put_nowait(message)

    async def until(self, find: Callable[[list[Any]], T | None]) -> T:
        """The first truthy answer of `find` over all that was received."""

        async def wait() -> T:
            async with self._changed:
                while not (found := find(self.received)):
                    await self._changed.wait()
                return found

        return await asyncio.wait_for(wait(), TIMEOUT_S)

    async def first(self, kind: type[T], **fields: Any) -> T:
        """The first message of this kind with these fields."""

        def find(received: list[Any]) -> T | None:
            fits = (m for m in received if isinstance(m, kind))
            return next((m for m in fits if all(getattr(m, k) == v for k, v in fields.items())), None)

        return await self.until(find)

    async def report(self, kind: type[T], worker: str) -> T:
        """The first report of this kind of one worker."""

        def find(received: list[Any]) -> T | None:
            passed_on = (m.report for m in received if isinstance(m, FromWorker) and m.worker == worker)
            return next((r for r in passed_on if isinstance(r, kind)), None)

        return await self.until(find)

    async def echo(self, worker: str, order: Any) -> FromWorker:
        """The fake worker's answer to an order that reached it."""
        return await self.first(FromWorker, worker=worker, report=Disabled(repr(order)))

    async def progress(self, fits: Callable[[Any], bool]) -> Any:
        """The first progress of one worker that fits."""
        return await self.until(
            lambda received: next(
                (w for m in received if isinstance(m, Progress) for w in m.workers if fits(w)),
                None,
            )
        )

    async def hello(self) -> AgentHello:
        return await self.first(AgentHello)


@asynccontextmanager
async def serving(
    controller: relay_pb2_grpc.RelayServicer, port: int = 0, secret: bytes = SECRET
) -> AsyncIterator[int]:
    server = make_server()
    relay_pb2_grpc.add_RelayServicer_to_server(controller, server)
    port = server.add_secure_port(f"127.0.0.1:{port}", Credentials.from_secret(secret, "controller").server())
    await server.start()
    try:
        yield port
    finally:
        await server.stop(None)


class Agent:
    """The process, and the folders that it was given."""

    def __init__(self, folder: Path, port: int, entry: tuple[str, ...] = ENTRY, **changes: Any) -> None:
        self._entry = entry
        self.folder, self.run_dir, self.journals = folder, folder / "run", folder / "journals"
        self.pipes = folder / "pipes"
        self.pipes.mkdir(exist_ok=True)
        (folder / "secret").write_bytes(SECRET)
        self._opened: dict[str, int] = {}
        self.config: dict[str, Any] = {
            "run_id": "test",
            "node": "n0",
            "node_rank": 0,
            "nnodes": 1,
            "nproc_per_node": 1,
            "spares": 0,
            "command": [sys.executable, "-S", str(FAKE_WORKER), str(self.pipes)],
            "host": "127.0.0.1",
            "controller": f"127.0.0.1:{port}",
            "secret_file": str(folder / "secret"),
            "run_dir": str(self.run_dir),
            "journal_dir": str(self.journals),
            "master_addr": "127.0.0.1",
            "master_port": 29500,
            "grace_s": 10,
        } | changes
        self.process: asyncio.subprocess.Process
        for kind, key in (("w", "nproc_per_node"), ("s", "spares")):
            for i in range(self.config[key] if type(self.config[key]) is int else 0):
                os.mkfifo(self.pipes / f"n0.{kind}{i}")

    async def start(self, environ: dict[str, str] | None = None) -> None:
        path = self.folder / "agent.json"
        path.write_text(json.dumps(self.config))
        self.process = await asyncio.create_subprocess_exec(
            sys.executable,
            *self._entry,
            "--config",
            str(path),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            env=environ,
        )

    def tell(self, worker: str, statement: str) -> None:
        """One line of Python to the fake worker, also before it reads."""
        if worker not in self._opened:
            self._opened[worker] = os.open(self.pipes / worker, os.O_RDWR)
        os.write(self._opened[worker], f"{statement}\n".encode())

    def close(self) -> None:
        for pipe in self._opened.values():
            os.close(pipe)

    async def ended(self) -> tuple[int, str, str]:
        """Exit code, stdout and stderr of the agent that ends by itself."""
        out, err = await asyncio.wait_for(self.process.communicate(), TIMEOUT_S)
        assert self.process.returncode is not None
        return self.process.returncode, out.decode(), err.decode()


@asynccontextmanager
async def ends_of(*pids: int) -> AsyncIterator[Callable[[], Awaitable[None]]]:
    """Gives a function that waits until all of these processes have ended; they must be there when this begins."""
    loop = asyncio.get_running_loop()
    watched = {os.pidfd_open(pid): asyncio.Event() for pid in pids}
    for pidfd, end in watched.items():
        loop.add_reader(pidfd, end.set)

    async def wait() -> None:
        await asyncio.wait_for(asyncio.gather(*(end.wait() for end in watched.values())), TIMEOUT_S)

    try:
        yield wait
    finally:
        for pidfd in watched:
            loop.remove_reader(pidfd)
            os.close(pidfd)


@asynccontextmanager
async def agent(folder: Path, port: int, entry: tuple[str, ...] = ENTRY, **changes: Any) -> AsyncIterator[Agent]:
    """Started; killed at the end if it still runs, which ends its children too. `entry`: what python is to run."""
    started = Agent(folder, port, entry, **changes)
    await started.start()
    try:
        yield started
    finally:
        if started.process.returncode is None:
            started.process.kill()
            await started.process.communicate()
        started.close()
