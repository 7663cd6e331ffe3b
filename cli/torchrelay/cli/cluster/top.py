"""`kubectl torchrelay top`: the jobs of a namespace, or of all, live on a terminal."""

from __future__ import annotations

import asyncio
import sys
import time
from contextlib import aclosing, suppress

from rich.live import Live

from torchrelay.cli.cluster import view
from torchrelay.cli.cluster.api import JOBS, MIGRATIONS, Cluster, Object, ResourceKind
from torchrelay.cli.display.teller import make_console
from torchrelay.cli.jobs.top import REFRESH_S, keys
from torchrelay.protocol.errors import UserError


async def top(cluster: Cluster, job: str | None, everywhere: bool) -> int:
    """Return 0 when the user ends it, or when the job that was asked for is over. Raises UserError without a terminal."""
    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        if job is not None:
            raise UserError(f"top needs a terminal\nhint: kubectl torchrelay status {job} --watch")
        raise UserError("top needs a terminal\nhint: kubectl torchrelay status --watch")
    if job is not None:
        await cluster.get(JOBS, job)
    found: dict[str, list[Object]] = {JOBS.plural: [], MIGRATIONS.plural: []}
    stopped = asyncio.Event()

    async def follow(kind: ResourceKind) -> None:
        async with aclosing(cluster.states(kind)) as states:
            async for state in states:
                found[kind.plural] = state

    following = [asyncio.ensure_future(follow(kind)) for kind in (JOBS, MIGRATIONS)]
    try:
        with keys(stopped), Live(console=make_console(sys.stdout), screen=True, auto_refresh=False) as live:
            while not stopped.is_set():
                jobs = [one for one in found[JOBS.plural] if job in (None, one["metadata"]["name"])]
                if job is not None and jobs and view.status_of(jobs[0]).get("finishedAt"):
                    break
                moves = [m for m in found[MIGRATIONS.plural] if job in (None, m["spec"]["job"])]
                live.update(view.top_view(jobs, moves, time.time(), everywhere), refresh=True)
                with suppress(asyncio.TimeoutError):
                    await asyncio.wait_for(stopped.wait(), REFRESH_S)
                for task in following:
                    if task.done():
                        task.result()
    finally:
        for task in following:
            task.cancel()
        await asyncio.wait(following)
    return 0
