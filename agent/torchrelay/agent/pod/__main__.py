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
from torchrelay.protocol.logs.log_lines import LogPart
from torchrelay.protocol.logs.part_process import run_part


async def _run(config: PodConfig) -> None:
    node = PodNode(config)
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, node.leave)
    await node.run()


def main() -> int:
    def work() -> None:
        asyncio.run(_run(PodConfig.from_environ(os.environ)))

    return run_part(LogPart.AGENT, os.environ, "torchrelay agent: %(word)s%(message)s", work, usual=logging.INFO)


if __name__ == "__main__":
    sys.exit(main())
