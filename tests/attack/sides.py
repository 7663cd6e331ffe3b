"""The process that serves a cluster's further ports, to be attacked: the webhook, the metrics, the dashboard."""

from __future__ import annotations

import asyncio
import ctypes
import gc
import json
import logging
import os
import sys
import tempfile
from pathlib import Path
from typing import Any

from attack.controlled import say
from support.certificate_store import FakeStore
from support.footprint import footprint
from support.ports import free_port

from torchrelay.dashboard.cluster import __main__ as dashboard
from torchrelay.protocol.metrics.endpoint import Endpoint
from torchrelay.webhook.serving.server import Webhook
from torchrelay.webhook.settings import ControllerSettings, ServerSettings, WebhookSettings


def _state() -> dict[str, Any]:
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)  # what is free is no leak
    held = footprint(os.getpid())
    assert held is not None
    return {"bytes": held.anonymous_bytes, "descriptors": held.descriptors, "tasks": len(asyncio.all_tasks())}


async def main() -> None:
    folder = Path(tempfile.mkdtemp(prefix="sides-"))
    (folder / "ca.crt").write_text("a certificate authority")
    ports = {"webhook": free_port(), "dashboard": free_port()}
    controller, server = ControllerSettings(caFile=str(folder / "ca.crt")), ServerSettings(port=ports["webhook"])
    webhook = Webhook(WebhookSettings(controller=controller, server=server, sidecar="native"), FakeStore(), _nobody)
    endpoint = Endpoint("127.0.0.1", 0, list)
    reader = asyncio.StreamReader()
    await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    serving = [
        asyncio.ensure_future(webhook.serve("127.0.0.1")),
        asyncio.ensure_future(dashboard.serve(dashboard.Settings(str(folder / "socket"), ports["dashboard"]))),
    ]
    say({**ports, "metrics": endpoint.port})
    while line := await reader.readline():
        ended = [repr(task) for task in serving if task.done()]
        say({**_state(), "ended": ended} if json.loads(line)["do"] == "state" else {})
    for task in serving:
        task.cancel()
    await asyncio.gather(*serving, return_exceptions=True)
    endpoint.close()


async def _nobody() -> str:
    raise AssertionError("nobody asks for the cluster's version")


if __name__ == "__main__":
    logging.basicConfig(level=logging.WARNING, stream=sys.stderr)
    asyncio.run(main())
