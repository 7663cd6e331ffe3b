"""`python -m torchrelay.agent --config FILE`: started by `torchrelay run`; ends when the pipe on its stdin does.

A line on that pipe is HOST:PORT of the controller that the job has from then on.
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import os
import signal
import stat
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

# gRPC's own lines about every handshake that it refuses are not for the user's terminal; ours say it once. The training
# processes inherit the environment as it was before.
ENVIRON = dict(os.environ)
os.environ.setdefault("GRPC_VERBOSITY", "NONE")

from torchrelay.agent.config import AgentConfig, load_config  # noqa: E402 - behind the variable
from torchrelay.agent.node import NodeAgent  # noqa: E402 - behind the variable
from torchrelay.protocol.logs.log_lines import LogPart  # noqa: E402 - behind the variable
from torchrelay.protocol.logs.part_process import run_part  # noqa: E402 - behind the variable
from torchrelay.protocol.security.secret_file import read_secret  # noqa: E402 - behind the variable

log = logging.getLogger("torchrelay.agent")


def _is_told_to_begin() -> bool:
    """Wait for a line on stdin. Return False if the process that started the agent closes the pipe instead, or is gone."""
    while byte := os.read(0, 1):  # one by one: what follows the line is for later
        if byte == b"\n":
            return True
    return False


def _on_stdin(turn_to: Callable[[str], None], end: Callable[[], None]) -> None:
    """Watch stdin: pass each line to `turn_to`, and call `end` when stdin closes.

    Only a pipe or a socket is watched: it is the life line to the process that started the agent. A terminal, a file or /dev/null
    is none.
    """
    mode = os.fstat(0).st_mode
    if not (stat.S_ISFIFO(mode) or stat.S_ISSOCK(mode)):
        return
    loop = asyncio.get_running_loop()

    received = bytearray()

    def readable() -> None:
        data = os.read(0, 4096)
        received.extend(data)
        while b"\n" in received:
            line, _, rest = received.partition(b"\n")
            received[:] = rest
            turn_to(line.decode())
        if not data:
            loop.remove_reader(0)
            end()

    loop.add_reader(0, readable)


async def _run(config: AgentConfig, secret: bytes, standard_input: int) -> int:
    node = NodeAgent(config, secret, ENVIRON, standard_input)
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        loop.add_signal_handler(number, node.stop, 128 + number, number, f"the agent got {number.name}")
    loop.add_signal_handler(signal.SIGCHLD, node.child_changed)
    _on_stdin(node.turn_to, lambda: node.end_now("who started the agent is gone"))
    return await node.run()


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m torchrelay.agent", description=__doc__)
    parser.add_argument("--config", type=Path, required=True, help="JSON file with the keys of config.AgentConfig")
    parser.add_argument(
        "--wait", action="store_true", help="read it when a line comes on stdin; end if stdin is closed"
    )
    parser.add_argument(
        "--hand-on",
        type=int,
        default=subprocess.DEVNULL,
        metavar="FD",
        help="an open file, which processes that begin with a rank get as their standard input; the others read nothing",
    )
    arguments = parser.parse_args()
    if arguments.wait and not _is_told_to_begin():
        return 0

    def work() -> int:
        config = load_config(arguments.config)
        return asyncio.run(_run(config, read_secret(Path(config.secret_file)), arguments.hand_on))

    return run_part(LogPart.AGENT, ENVIRON, "torchrelay agent: %(word)s%(message)s", work)


if __name__ == "__main__":
    sys.exit(main())
