"""Who knows nothing: bytes that are no protocol, connections that say nothing or very slowly, and floods of both."""

from __future__ import annotations

import asyncio
import contextlib
import ssl
from collections.abc import Callable

from attack.draw import Draw
from attack.tally import Tally

CONNECT_S = 5.0
ANSWER_S = 1.0
AT_ONCE = 50
HTTP2 = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
CLIENT_HELLO = bytes.fromhex("16030100f8010000f40303") + bytes(range(32))


async def garbage(port: int, draw: Draw, tally: Tally, count: int) -> None:
    """Each on a connection of its own; some begin as TLS, HTTP/2 or HTTP do."""
    beginnings = (b"", CLIENT_HELLO, HTTP2, b"GET / HTTP/1.1\r\n", b"\x00\x00\x00\x04", b"TRTENSOR")

    async def one() -> None:
        data = draw.chance.choice(beginnings) + draw.garbage()
        with contextlib.suppress(OSError, asyncio.TimeoutError):
            reader, writer = await asyncio.wait_for(asyncio.open_connection("127.0.0.1", port), CONNECT_S)
            try:
                writer.write(data)
                await asyncio.wait_for(writer.drain(), ANSWER_S)
                answer = await asyncio.wait_for(reader.read(4096), ANSWER_S)
                tally.refuse("garbage on a port", f"closed after {'an answer' if answer else 'no answer'}")
            finally:
                writer.transport.abort()

    for _ in range(0, count, AT_ONCE):
        await asyncio.gather(*(one() for _ in range(AT_ONCE)))
    tally.sent("garbage on a port", count)


async def half_open(
    port: int, draw: Draw, tally: Tally, count: int, attack: Callable[[], asyncio.Future[None]]
) -> None:
    """Connections that say nothing, or the beginning of a handshake and then a byte now and then, while `attack` goes on."""
    writers: list[asyncio.StreamWriter] = []
    for number in range(count):
        try:
            _, writer = await asyncio.wait_for(asyncio.open_connection("127.0.0.1", port), CONNECT_S)
        except (OSError, asyncio.TimeoutError) as e:
            tally.refuse("half-open connections", type(e).__name__)
            continue
        writers.append(writer)
        if number % 2:
            writer.write(draw.chance.choice((CLIENT_HELLO, HTTP2, b"G", b"\0")))
    tally.sent("half-open connections", count)
    try:
        ends = attack()
        while not ends.done():
            for writer in writers:
                if draw.chance.random() < 0.1 and not writer.is_closing():
                    writer.write(b"\0")
            await asyncio.wait([ends], timeout=0.1)
        await ends
    finally:
        for writer in writers:
            writer.transport.abort()


async def bad_tls(port: int, tally: Tally, count: int) -> None:
    """Handshakes with no certificate, by who trusts anybody, and then nothing for a moment."""
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    context.set_alpn_protocols(["h2"])

    async def one() -> None:
        try:
            reader, writer = await asyncio.wait_for(asyncio.open_connection("127.0.0.1", port, ssl=context), CONNECT_S)
        except (OSError, ssl.SSLError, asyncio.TimeoutError) as e:
            tally.refuse("TLS without a certificate", type(e).__name__)
            return
        try:
            writer.write(HTTP2 + bytes(9))
            answer = await asyncio.wait_for(reader.read(4096), ANSWER_S)
            if not answer:
                tally.refuse("TLS without a certificate", "closed")
        except (OSError, asyncio.TimeoutError) as e:
            tally.refuse("TLS without a certificate", type(e).__name__)
        finally:
            writer.transport.abort()

    for _ in range(0, count, AT_ONCE):
        await asyncio.gather(*(one() for _ in range(AT_ONCE)))
    tally.sent("TLS without a certificate", count)
