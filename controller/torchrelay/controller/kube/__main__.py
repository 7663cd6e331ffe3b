"""`python -m torchrelay.controller.kube`: the controller of a cluster."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import sys

os.environ.setdefault("GRPC_VERBOSITY", "NONE")

from torchrelay.controller.kube.api import connect
from torchrelay.controller.kube.authority import open_authority
from torchrelay.controller.kube.controller import Controller
from torchrelay.controller.kube.settings import Settings
from torchrelay.protocol.errors import TorchrelayError, UserError
from torchrelay.protocol.names import EXIT_USAGE


async def _run(settings: Settings) -> None:
    api = connect()
    authority = await open_authority(api, settings.namespace)
    work = asyncio.ensure_future(Controller(api, settings, authority).run())
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, work.cancel)
    await work


def main() -> int:
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s", stream=sys.stderr)
    logging.getLogger("httpx2").setLevel(logging.WARNING)
    try:
        asyncio.run(_run(Settings.from_environ(os.environ)))
    except asyncio.CancelledError:
        return 0
    except UserError as e:
        print(f"torchrelay controller: {e}", file=sys.stderr)
        return EXIT_USAGE
    except TorchrelayError as e:
        print(f"torchrelay controller: {e}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
