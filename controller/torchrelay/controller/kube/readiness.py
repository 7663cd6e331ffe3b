"""The port that the kubelet's readiness probe asks: open while this replica leads, or could."""

from __future__ import annotations

import asyncio

from torchrelay.controller.kube.settings import Settings
from torchrelay.protocol.errors import UserError


async def serve_readiness(settings: Settings) -> asyncio.Server:
    """Raises UserError for a port that is taken."""

    def hang_up(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.close()

    try:
        return await asyncio.start_server(hang_up, settings.host, settings.ready_port)
    except OSError as e:
        raise UserError(f"cannot listen on {settings.host}:{settings.ready_port}: {e}") from e
