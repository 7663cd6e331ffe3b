"""The port that the kubelet's probes ask, over HTTP: 200 while this replica leads, or could, and its loop moves."""

from __future__ import annotations

import asyncio

from torchrelay.controller.kube.pulse import STILL_S, Pulse
from torchrelay.controller.kube.settings import ClusterSettings
from torchrelay.protocol.errors import UserError

ASK_S = 5.0
"""Time for a request: a connection that says nothing for so long is closed."""
HEAD_BYTES = 4096


async def serve_readiness(settings: ClusterSettings, pulse: Pulse) -> asyncio.Server:
    """Serve the kubelet's probes. Raises UserError for a port that is taken.

    A loop that is held up as a whole answers nothing, which probes notice, too.
    """

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await asyncio.wait_for(reader.readuntil(b"\r\n"), ASK_S)
            writer.write(_answer(pulse.still_s()))
            await asyncio.wait_for(writer.drain(), ASK_S)
        except (OSError, asyncio.TimeoutError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
            return  # no probe of a kubelet's
        finally:
            writer.close()

    try:
        return await asyncio.start_server(answer, settings.host, settings.ready_port, limit=HEAD_BYTES)
    except OSError as e:
        raise UserError(f"cannot listen on {settings.host}:{settings.ready_port}: {e}") from e


def _answer(still_s: float) -> bytes:
    status = "200 OK"
    text = "ok\n"
    if still_s > STILL_S:
        status = "503 Service Unavailable"
        text = f"no job has been looked after for {still_s:.0f} s\n"
    return f"HTTP/1.1 {status}\r\nContent-Length: {len(text)}\r\nConnection: close\r\n\r\n{text}".encode()
