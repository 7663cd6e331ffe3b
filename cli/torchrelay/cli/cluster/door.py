"""A port of this machine that leads to another one of it, which may change, and never leaves bytes behind that nobody reads.

`kubectl port-forward` (seen with 1.20.2) can stand still when a browser leaves a page that is still being sent: what comes for the
connection that is gone holds up others. So what a browser does not want any more is read here, to its end.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from torchrelay.protocol.errors import UserError

LOOPBACK = "127.0.0.1"
AT_ONCE_BYTES = 64 << 10
REST_S = 30.0
"""For the rest of what nobody wants: the dashboard stops as soon as it hears that the page is left."""


class Door:
    """A port that leads to another one. `port`: its own. `target`: the port that it leads to; 0: nowhere for now."""

    def __init__(self, port: int) -> None:
        self.port = port
        self.target = 0
        self._connections: set[asyncio.Task[None]] = set()

    async def connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Lead one connection through."""
        task = asyncio.current_task()
        assert task is not None
        self._connections.add(task)
        try:
            there, to_there = await asyncio.open_connection(LOOPBACK, self.target)
        except OSError:
            writer.close()  # the browser tries again
            self._connections.discard(task)
            return
        asking = asyncio.ensure_future(_ask(reader, to_there))
        try:
            await _answer(there, writer, asking)
        except asyncio.CancelledError:
            pass  # the door is shut; asyncio would print a traceback for each
        finally:
            asking.cancel()
            writer.close()
            to_there.close()
            self._connections.discard(task)

    async def end(self) -> None:
        """Cut what still goes through."""
        cut = list(self._connections)
        for task in cut:
            task.cancel()
        await asyncio.gather(*cut, return_exceptions=True)


@asynccontextmanager
async def opened(port: int) -> AsyncIterator[Door]:
    """Open a door at `port` of the loopback device; 0: a free port. Raises UserError for a port that is taken."""
    try:
        sock = socket.create_server((LOOPBACK, port), backlog=64)
    except OSError as e:
        raise UserError(f"--port {port}: {e.strerror}\nhint: --port 0 takes a free one") from e
    door = Door(sock.getsockname()[1])
    server = await asyncio.start_server(door.connected, sock=sock, limit=AT_ONCE_BYTES)
    try:
        yield door
    finally:
        server.close()
        await door.end()


async def _ask(reader: asyncio.StreamReader, to_there: asyncio.StreamWriter) -> None:
    """Pass on what the browser sends until it has gone. Then tell the other side so."""
    with contextlib.suppress(OSError):
        while data := await reader.read(AT_ONCE_BYTES):
            to_there.write(data)
            await to_there.drain()
    with contextlib.suppress(OSError):
        to_there.write_eof()


async def _answer(there: asyncio.StreamReader, writer: asyncio.StreamWriter, asking: asyncio.Task[None]) -> None:
    """Pass on all that comes back. Once the browser has gone, the rest is read and dropped."""
    answering = asyncio.ensure_future(_copy(there, writer, asking))
    try:
        await asyncio.wait((answering, asking), return_when=asyncio.FIRST_COMPLETED)
        await asyncio.wait((answering,), timeout=REST_S)
    finally:
        answering.cancel()


async def _copy(there: asyncio.StreamReader, writer: asyncio.StreamWriter, asking: asyncio.Task[None]) -> None:
    with contextlib.suppress(OSError):  # the way there is cut
        while data := await there.read(AT_ONCE_BYTES):
            if not asking.done():
                with contextlib.suppress(OSError):
                    writer.write(data)
                    await writer.drain()
