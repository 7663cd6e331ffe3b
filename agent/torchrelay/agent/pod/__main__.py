"""`python -m torchrelay.agent.pod`: the agent beside one training container; the webhook starts it."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import sys

os.environ.setdefault("GRPC_VERBOSITY", "NONE")

from torchrelay.agent.pod.config import PodConfig
from torchrelay.agent.pod.node import PodNode
from torchrelay.protocol.errors import TorchrelayError, UserError
from torchrelay.protocol.logs.log_lines import LogLines, LogPart
from torchrelay.protocol.logs.log_records import set_up, wanted_level
from torchrelay.protocol.names import EXIT_USAGE


async def _run(config: PodConfig) -> None:
    node = PodNode(config)
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, node.leave)
    await node.run()


def main() -> int:
    log = LogLines.from_environ(LogPart.AGENT, os.environ)
    try:
        set_up(log, wanted_level(os.environ, logging.INFO), "torchrelay agent: %(message)s")
        asyncio.run(_run(PodConfig.from_environ(os.environ)))
    except UserError as e:
        log.say(str(e), "error")
        return EXIT_USAGE
    except TorchrelayError as e:
        log.say(str(e), "error")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
