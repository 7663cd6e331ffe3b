"""`torchrelay top`: the running jobs of this user, live on a terminal."""

from __future__ import annotations

import asyncio
import os
import shlex
import sys
import termios
import tty
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from rich.live import Live

from torchrelay.cli.display.teller import make_console
from torchrelay.cli.display.top_view import top_view
from torchrelay.cli.folders import folder
from torchrelay.cli.folders.meant_job import meant_job
from torchrelay.cli.jobs.live_run import LiveRun, follow_jobs
from torchrelay.protocol.errors import UserError

REFRESH_S = 1.0
ENDS = frozenset("qQ\x03\x04")


async def top(wanted: str | None) -> int:
    """Return 0 when the user ends it, or when the job that was asked for is over. Raises UserError without a terminal."""
    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        if wanted is not None:
            raise UserError(f"top needs a terminal\nhint: torchrelay status {shlex.quote(wanted)} --watch")
        raise UserError("top needs a terminal\nhint: torchrelay status --watch")
    state = folder.state_folder(os.environ)
    run_id = meant_job(state, wanted).run_id if wanted is not None else None
    runs: dict[str, LiveRun] = {}
    following = asyncio.ensure_future(follow_jobs(runs.__setitem__, state, run_id))
    stopped = asyncio.Event()
    try:
        with keys(stopped), Live(console=make_console(sys.stdout), screen=True, auto_refresh=False) as live:
            while not (stopped.is_set() or _is_over(runs, run_id)):
                running = [run.seen() for run in runs.values()]
                live.update(top_view([s for s in running if s.record.ended is None]), refresh=True)
                with suppress(asyncio.TimeoutError):
                    await asyncio.wait_for(stopped.wait(), REFRESH_S)
                if following.done():
                    following.result()
    finally:
        following.cancel()
        await asyncio.wait((following,))
    return 0


def _is_over(runs: dict[str, LiveRun], run_id: str | None) -> bool:
    return run_id in runs and runs[run_id].seen().record.ended is not None


@contextmanager
def keys(stopped: asyncio.Event) -> Iterator[None]:
    """Read each key as it is pressed, and do not show it. Set `stopped` at a key that ends the view."""
    fd = sys.stdin.fileno()
    loop = asyncio.get_running_loop()
    before = termios.tcgetattr(fd)

    def pressed() -> None:
        keys = os.read(fd, 64).decode(errors="replace")
        if not keys or ENDS & set(keys):
            stopped.set()

    tty.setcbreak(fd)
    loop.add_reader(fd, pressed)
    try:
        yield
    finally:
        loop.remove_reader(fd)
        termios.tcsetattr(fd, termios.TCSADRAIN, before)
