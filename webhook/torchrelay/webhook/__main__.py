"""`python -m torchrelay.webhook --config FILE`: the admission webhook."""

from __future__ import annotations

import argparse
import asyncio
import os
import sys
from pathlib import Path

from lightkube import AsyncClient

from torchrelay.protocol.logs.log_lines import LogPart
from torchrelay.protocol.logs.part_process import run_part
from torchrelay.webhook.serving.cluster import find_sidecar
from torchrelay.webhook.serving.server import Webhook
from torchrelay.webhook.settings import SELF_MADE, WebhookSettings, load
from torchrelay.webhook.tls.stores import KubernetesStore


async def _serve(settings: WebhookSettings) -> None:
    store = KubernetesStore(AsyncClient(), settings.server) if settings.server.certificates == SELF_MADE else None
    await Webhook(settings, store, find_sidecar).serve()


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m torchrelay.webhook", description=__doc__)
    parser.add_argument("--config", type=Path, required=True)
    arguments = parser.parse_args()

    def work() -> None:
        asyncio.run(_serve(load(arguments.config)))

    return run_part(LogPart.WEBHOOK, os.environ, "%(asctime)s %(word)s%(message)s", work)


if __name__ == "__main__":
    sys.exit(main())
