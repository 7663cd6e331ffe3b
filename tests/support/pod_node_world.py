"""An agent beside a process that it did not start, over a real socket; the controller is played by the test."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

from torchrelay.agent.pod.config import PodConfig
from torchrelay.agent.pod.node import PodNode
from torchrelay.protocol import messages as msg
from torchrelay.protocol.transport import wire

LAUNCH = {"RANK": "1", "WORLD_SIZE": "2"}
WORKER = "train-1:0a1b2c3d.1"
WITHIN_S = 60.0
TOKEN = "5e" * 32


class FakeSession:
    def __init__(self) -> None:
        self.sent: list[Any] = []
        self.connected, self.away_s = False, 0.0
        self.renewed = self.waiting = 0

    def send(self, message: Any) -> None:
        self.sent.append(message)

    def renew(self) -> None:
        self.renewed += 1

    async def run(self) -> None:
        await asyncio.Event().wait()

    def close(self) -> None:
        pass

    def of(self, kind: type) -> list[Any]:
        return [m for m in self.sent if isinstance(m, kind)]


class Shim:
    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer

    def say(self, *reports: Any) -> None:
        self._writer.write(b"".join(map(wire.encode, reports)))

    async def hear(self) -> Any:
        head = await asyncio.wait_for(self._reader.readexactly(wire.HEAD_BYTES), WITHIN_S)
        data = await asyncio.wait_for(self._reader.readexactly(wire.frame_length(head)), WITHIN_S)
        return wire.decode(data, wire.ORDERS)

    def close(self) -> None:
        self._writer.close()


class World:
    def __init__(self, folder: Path, metrics_port: int = 0) -> None:
        self.config = PodConfig(
            "team",
            "train-1",
            "0a1b2c3d-9",
            "127.0.0.1",
            "x:1",
            "x:2",
            b"",
            folder / "run",
            folder / "token",
            0.1,
            0.1,
            kept=folder / "kept",
            metrics_port=metrics_port,
        )
        self.config.run_folder.mkdir()
        self.config.shim_token.write_text(TOKEN)  # of an agent before this one
        self.node = PodNode(self.config)
        self.session = self.node.agent.session = FakeSession()  # type: ignore[assignment]  # a stand-in
        self.task = asyncio.create_task(self.node.run())
        self._shims: list[Shim] = []

    async def shim(self, spare: bool = False, launch: dict[str, str] | None = None, token: str = TOKEN) -> Shim:
        await self.until(self.config.socket.exists)
        shim = Shim(*await asyncio.open_unix_connection(str(self.config.socket)))
        self._shims.append(shim)
        shim.say(msg.Hello("train-1", token, 1, "3", spare, LAUNCH if launch is None else launch))
        return shim

    async def until(self, true: Callable[[], Any]) -> None:
        async def look() -> None:
            while not true():  # noqa: ASYNC110 - what the agent does tells nobody
                await asyncio.sleep(0.01)

        await asyncio.wait_for(look(), WITHIN_S)

    def order(self, order: Any, worker: str = WORKER) -> None:
        self.node.agent.ordered(msg.ToWorker(worker, order))

    async def close(self) -> None:
        for shim in self._shims:
            shim.close()
        self.task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await self.task
