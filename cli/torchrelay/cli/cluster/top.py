"""`kubectl torchrelay top`: the jobs of a namespace, or of all, live on a terminal."""

from __future__ import annotations

import asyncio
import sys
import time
from collections import deque
from collections.abc import Sequence
from contextlib import aclosing, suppress

from rich.live import Live

from torchrelay.cli.cluster import view
from torchrelay.cli.cluster.api import JOBS, MIGRATIONS, Cluster, Object, ResourceKind
from torchrelay.cli.display.teller import make_console
from torchrelay.cli.jobs.top import REFRESH_S, keys
from torchrelay.protocol.errors import UserError

RATE_OVER_S = 60.0
SEEN_KEPT = 100


class StepRates:
    """How fast jobs train, as far as this view has watched: a TrainingJob says its step, and no rate."""

    def __init__(self) -> None:
        self._seen: dict[tuple[str, str], deque[tuple[float, int]]] = {}

    def take(self, jobs: Sequence[Object], now_s: float) -> None:
        """What the jobs say at `now_s`, by any clock that moves on."""
        there = {view.place(job) for job in jobs}
        for gone in self._seen.keys() - there:
            del self._seen[gone]
        for job in jobs:
            step = int(view.status_of(job).get("step", 0))
            seen = self._seen.setdefault(view.place(job), deque(maxlen=SEEN_KEPT))
            if seen and step < seen[-1][1]:
                seen.clear()  # it has gone back, or begun anew
            if not seen or step > seen[-1][1]:
                seen.append((now_s, step))
            while len(seen) > 2 and now_s - seen[0][0] > RATE_OVER_S:
                seen.popleft()

    def per_s(self, job: Object) -> float | None:
        """None before two steps were seen."""
        seen = self._seen.get(view.place(job))
        if seen is None or len(seen) < 2 or view.status_of(job).get("phase") != "Running":
            return None
        (first_s, first), (last_s, last) = seen[0], seen[-1]
        return (last - first) / (last_s - first_s) if last_s > first_s else None


async def top(cluster: Cluster, job: str | None, everywhere: bool) -> int:
    """Return 0 when the user ends it, or when the job that was asked for is over. Raises UserError without a terminal."""
    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        raise UserError("top needs a terminal\nhint: kubectl torchrelay status --watch")
    if job is not None:
        await cluster.get(JOBS, job)
    found: dict[str, list[Object]] = {JOBS.plural: [], MIGRATIONS.plural: []}
    rates, stopped = StepRates(), asyncio.Event()

    async def follow(kind: ResourceKind) -> None:
        async with aclosing(cluster.states(kind)) as states:
            async for state in states:
                found[kind.plural] = state
                if kind is JOBS:
                    rates.take(state, time.monotonic())

    following = [asyncio.ensure_future(follow(kind)) for kind in (JOBS, MIGRATIONS)]
    try:
        with keys(stopped), Live(console=make_console(sys.stdout), screen=True, auto_refresh=False) as live:
            while not stopped.is_set():
                jobs = [one for one in found[JOBS.plural] if job in (None, one["metadata"]["name"])]
                if job is not None and jobs and view.status_of(jobs[0]).get("finishedAt"):
                    break
                moves = [m for m in found[MIGRATIONS.plural] if job in (None, m["spec"]["job"])]
                live.update(view.top_view(jobs, moves, rates.per_s, everywhere), refresh=True)
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
