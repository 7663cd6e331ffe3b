"""`python -m torchrelay.webhook --config FILE`: the admission webhook."""

from __future__ import annotations

import argparse
import asyncio
import logging
import os
import sys
from pathlib import Path

from lightkube import AsyncClient

from torchrelay.protocol.errors import UserError
from torchrelay.protocol.logs.log_lines import LogLines, LogPart
from torchrelay.protocol.logs.log_records import set_up, wanted_level
from torchrelay.protocol.names import EXIT_USAGE
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
    log = LogLines.from_environ(LogPart.WEBHOOK, os.environ)
    try:
        set_up(log, wanted_level(os.environ, logging.WARNING), "%(asctime)s %(levelname)s %(name)s: %(message)s")
        asyncio.run(_serve(load(arguments.config)))
    except UserError as e:
        log.say(str(e), "error")
        return EXIT_USAGE
    return 0


if __name__ == "__main__":
    sys.exit(main())
