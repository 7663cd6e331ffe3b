"""The port of this machine that leads to `kubectl port-forward`."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from torchrelay.cli.cluster.door import LOOPBACK, Door, opened

Serve = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


def with_door(serve: Serve, test: Callable[[Door], Awaitable[None]]) -> None:
    async def run() -> None:
        server = await asyncio.start_server(serve, LOOPBACK, 0)
        async with opened(0) as door:
            door.target = server.sockets[0].getsockname()[1]
            await asyncio.wait_for(test(door), 20)
        server.close()

    asyncio.run(run())


def test_what_is_asked_and_answered_goes_through() -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write((await reader.readline()) * 100_000)
        await writer.drain()
        writer.close()

    async def test(door: Door) -> None:
        reader, writer = await asyncio.open_connection(LOOPBACK, door.port)
        writer.write(b"word\n")
        assert await reader.read() == b"word\n" * 100_000
        writer.close()

    with_door(serve, test)


def test_who_leaves_a_page_that_is_still_sent_is_missed_by_nobody_and_the_rest_is_read_to_its_end() -> None:
    heard, sent = asyncio.Event(), asyncio.Event()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"first\n")
        assert await reader.read() == b""  # it is told that the page is left,
        heard.set()
        for _ in range(200):
            writer.write(b"x" * 100_000)  # and what it has sent meanwhile does not stay on the way
            await writer.drain()
        sent.set()
        writer.close()

    async def test(door: Door) -> None:
        reader, writer = await asyncio.open_connection(LOOPBACK, door.port)
        assert await reader.readline() == b"first\n"
        writer.transport.abort()
        await heard.wait()
        await sent.wait()

    with_door(serve, test)


def test_where_it_leads_nowhere_for_now_the_browser_may_come_again() -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"there\n")
        writer.close()

    async def test(door: Door) -> None:
        target, door.target = door.target, 1
        reader, writer = await asyncio.open_connection(LOOPBACK, door.port)
        assert await reader.read() == b""
        writer.close()
        door.target = target
        reader, writer = await asyncio.open_connection(LOOPBACK, door.port)
        assert await reader.read() == b"there\n"
        writer.close()

    with_door(serve, test)
