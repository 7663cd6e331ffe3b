"""`python -m torchrelay.dashboard.cluster`: the dashboard in the controller's pod."""

from __future__ import annotations

import asyncio
import logging
import os
import socket
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from torchrelay.dashboard import guard, server
from torchrelay.dashboard.cluster.asks import ControllerAsks
from torchrelay.dashboard.cluster.follow import follow, sweep
from torchrelay.dashboard.cluster.jobs import ClusterJobs
from torchrelay.dashboard.cluster.kept import KeptJobs
from torchrelay.dashboard.tokens import TokenFolder, one_token
from torchrelay.protocol.errors import UserError
from torchrelay.protocol.kube import kube_names as kube
from torchrelay.protocol.logs.log_lines import LogPart
from torchrelay.protocol.logs.part_process import run_part
from torchrelay.protocol.names import ENV_HISTORY_DIR

LOOPBACK = "127.0.0.1"
DAY_S = 86_400.0
HISTORY_BYTES = 512 << 20


@dataclass(frozen=True)
class Settings:
    """`socket_path`: the controller's. `port`: on the loopback device. `ttl_s`: for how long jobs are kept after their end.

    `tokens`: the folder with a token for each person who may ask for something, None: nobody may.
    `history`: the folder that what happens to jobs is kept in, None: nowhere; `history_bytes`: its size at most.
    """

    socket_path: str
    port: int = kube.DASHBOARD_PORT
    ttl_s: float = DAY_S
    history: Path | None = None
    history_bytes: int = HISTORY_BYTES
    tokens: Path | None = None

    @property
    def kept(self) -> KeptJobs | None:
        return KeptJobs(self.history, self.history_bytes) if self.history is not None else None

    @classmethod
    def from_environ(cls, environ: Mapping[str, str]) -> Settings:
        """Read the settings. Raises UserError for a number that is none."""
        folder = environ.get(ENV_HISTORY_DIR)
        tokens = environ.get(kube.ENV_DASHBOARD_TOKENS)
        path = environ.get(kube.ENV_DASHBOARD_SOCKET) or kube.DASHBOARD_SOCKET
        return cls(
            path,
            ttl_s=_number(environ, kube.ENV_TTL_AFTER_FINISHED_S, DAY_S),
            history=Path(folder) if folder else None,
            history_bytes=int(_number(environ, kube.ENV_HISTORY_BYTES, HISTORY_BYTES)),
            tokens=Path(tokens) if tokens else None,
        )


def _number(environ: Mapping[str, str], name: str, otherwise: float) -> float:
    try:
        return float(environ.get(name) or otherwise)
    except ValueError as e:
        raise UserError(f"{name} is a number: {e}") from e


async def serve(settings: Settings) -> None:
    """Serve until a signal ends it. Raises UserError for a port that is taken."""
    try:
        sock = socket.create_server((LOOPBACK, settings.port), backlog=64)
    except OSError as e:
        raise UserError(f"cannot listen on {LOOPBACK}:{settings.port}: {e.strerror}") from e
    with sock:
        kept = settings.kept
        tokens = TokenFolder(settings.tokens) if settings.tokens is not None else one_token("")
        jobs = ClusterJobs(settings.ttl_s, kept=kept, asks=ControllerAsks() if settings.tokens is not None else None)
        work = [asyncio.ensure_future(w) for w in (follow(jobs, settings.socket_path), sweep(jobs))]
        app = server.make_app(jobs.hub, guard.LOOPBACK_NAMES, tokens)
        page = asyncio.ensure_future(server.make_server(app).serve([sock]))
        logging.info("the dashboard is at %s:%d, for kubectl port-forward", LOOPBACK, settings.port)
        try:
            await asyncio.wait((*work, page), return_when=asyncio.FIRST_COMPLETED)
            for task in (*work, page):
                if task.done():
                    task.result()
        finally:
            for task in work:
                task.cancel()
            await asyncio.gather(*work, return_exceptions=True)
            if kept is not None:
                kept.close()


def main() -> int:
    """Return the exit code."""

    def work() -> None:
        asyncio.run(serve(Settings.from_environ(os.environ)))

    return run_part(LogPart.DASHBOARD, os.environ, "%(asctime)s %(word)s%(message)s", work, usual=logging.INFO)


if __name__ == "__main__":
    sys.exit(main())
