"""`torchrelay dashboard`: a page for this user's running jobs, or for the event file of a run."""

from __future__ import annotations

import asyncio
import errno
import os
import secrets
import socket
import stat
import sys
import time
from collections.abc import Coroutine
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torchrelay.cli.display import narrate
from torchrelay.cli.display.teller import make_console
from torchrelay.cli.folders import folder
from torchrelay.cli.folders.history import history_folder, kept_runs
from torchrelay.cli.folders.kept_run import RunHead
from torchrelay.cli.folders.meant_job import meant_job
from torchrelay.cli.folders.shown_run import name_start_and_folder, shown_command
from torchrelay.cli.jobs.live_run import LOOK_AGAIN_S, follow_jobs
from torchrelay.dashboard import words
from torchrelay.dashboard.event_lines import EventLines
from torchrelay.dashboard.hub import Answer, Hub
from torchrelay.dashboard.record import RunRecord
from torchrelay.dashboard.tokens import SHORTEST_TOKEN, is_token, one_token
from torchrelay.dashboard.view import Seen
from torchrelay.protocol.errors import UserError

SILENT_S = 120.0
SILENT_STEPS = 10
"""For so long, and for the time of so many steps, a run may say nothing."""
KEPT_SHOWN = 20
"""Of the runs that are over."""


@dataclass(frozen=True)
class DashboardOptions:
    """The command line. `events`: the file of a run. Without it the page shows the job `run_id`, or all running and kept jobs."""

    events: Path | None
    run_id: str | None
    host: str
    port: int
    allow_hosts: tuple[str, ...]
    token_file: Path | None


class FileRun:
    """A run whose events are in a file, which may still grow. It can be asked for nothing. `head`: of a kept run that is over."""

    def __init__(self, lines: EventLines, head: RunHead | None = None) -> None:
        self._lines = lines
        self._head = head
        self._problem = ""

    def seen(self) -> Seen:
        record = self._lines.record
        head = self._head
        if head is None:
            problem = self._problem or silence(record, time.time())
            return Seen(record, record.newest_s, str(self._lines.path), unreachable=problem)
        killed = "" if record.ended is not None else "no end was written: its command was killed"
        when = name_start_and_folder(head.name, head.started_s, head.working_folder)
        command = shown_command(head.command)
        return Seen(record, record.newest_s, command, unreachable=killed, when=when, is_over=True)

    async def follow(self) -> None:
        """Follow the file until its last event."""
        while True:
            try:
                more = self._lines.read_more()
            except UserError as e:  # it was there when the dashboard began
                self._problem = str(e)
                return
            await asyncio.sleep(0 if more else LOOK_AGAIN_S)

    async def migrate(self, rank: int, reason: str, by: str) -> Answer:
        return Answer(False, "this is the file of a run: nothing can be asked of it")

    async def clear(self, subject: str, reason: str, check: bool, by: str) -> Answer:
        return Answer(False, "this is the file of a run: nothing can be asked of it")


def silence(record: RunRecord, now_s: float) -> str:
    """Return why a file without the run's end is believed to grow no more; empty if it may still grow."""
    usual_s = SILENT_STEPS / record.steps_per_s if record.steps_per_s > 0 else 0.0
    quiet_s = now_s - record.newest_s
    if record.ended is not None or quiet_s < max(SILENT_S, usual_s):
        return ""
    return f"the file ends before the run does, {words.duration(quiet_s)} ago: the run was killed, or writes elsewhere"


async def dashboard(options: DashboardOptions) -> int:
    """Serve until a signal ends it. Raises UserError."""
    try:
        from torchrelay.dashboard import guard, server
    except ImportError as e:
        raise UserError(
            f"torchrelay dashboard needs what is not installed ({e}): pip install 'torchrelay[dashboard]'"
        ) from e
    token = read_token(options.token_file) if options.token_file is not None else ""
    hub = Hub()
    with _listen(options.host, options.port) as sock:
        following = asyncio.ensure_future(_prepare(hub, options))
        port = sock.getsockname()[1]
        names = {*guard.LOOPBACK_NAMES, _in_url(options.host), *options.allow_hosts}
        serving = server.make_server(server.make_app(hub, names, one_token(token)))
        _say(f"the dashboard is at http://{_in_url(options.host)}:{port}/ (Ctrl-C ends it)")
        if options.token_file is not None:
            _say(f"moves and clears can be asked for with the token in {options.token_file}")
        if not _is_loopback(options.host):
            _say(f"whoever reaches {options.host}:{port} can read it: it asks nobody who they are", "yellow")
        page = asyncio.ensure_future(serving.serve([sock]))
        try:
            await asyncio.wait((following, page), return_when=asyncio.FIRST_COMPLETED)
            if not page.done():
                following.result()  # the run of a file is over, and the page stays
            await page
        finally:
            following.cancel()
            serving.should_exit = True
            await asyncio.wait((following, page))
    return 0


def _prepare(hub: Hub, options: DashboardOptions) -> Coroutine[Any, Any, None]:
    """Return the coroutine that follows the runs. Raises UserError if there is no such run or file."""
    if options.events is not None:
        lines = EventLines(options.events)
        while not lines.record.run_id and lines.read_more():
            pass
        run = FileRun(lines)
        hub.put(lines.record.run_id or options.events.stem, run)
        return run.follow()
    state = folder.state_folder(os.environ)
    if options.run_id is not None:
        meant_job(state, options.run_id)
    return _follow_all(hub, state) if options.run_id is None else follow_jobs(hub.put, state, options.run_id)


async def _follow_all(hub: Hub, state: Path) -> None:
    """Follow all jobs of this user, whenever they begin, and add the newest runs that are over."""
    following = asyncio.ensure_future(follow_jobs(hub.put, state, None))
    try:
        await put_kept(hub, history_folder(os.environ))
        await following
    finally:
        following.cancel()
        await asyncio.wait((following,))


async def put_kept(hub: Hub, history: Path | None) -> None:
    """Put the newest finished runs into the hub, one by one as they are read. A run that cannot be read is left out."""
    for run in reversed(kept_runs(history)[:KEPT_SHOWN]):
        if run.head.is_running or hub.find(run.head.run_id) is not None:
            continue
        lines = EventLines(run.events)
        try:
            await asyncio.to_thread(lines.read_all)  # whoever looks at a running job meanwhile is not kept waiting
        except UserError:
            continue
        hub.put(run.head.run_id, FileRun(lines, run.head))


def read_token(path: Path) -> str:
    """Read the token's file, and make it with a new token if it is missing. Raises UserError if others could read it."""
    try:
        if not path.exists():
            folder.write_private(path, (secrets.token_urlsafe(32) + "\n").encode())
        if stat.S_IMODE(path.stat().st_mode) & 0o077:
            raise UserError(f"--token-file {path}: others can read or change it; `chmod 600 {path}`")
        token = path.read_text().strip()
    except (OSError, UnicodeDecodeError) as e:
        raise UserError(f"--token-file {path}: {e}") from e
    if not is_token(token):
        raise UserError(f"--token-file {path}: a token has {SHORTEST_TOKEN} letters and digits at least")
    return token


def _listen(host: str, port: int) -> socket.socket:
    try:
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        return socket.create_server((host, port), family=family, backlog=64)
    except OSError as e:
        hint = "\nhint: --port 0 takes a free one" if e.errno == errno.EADDRINUSE else ""
        raise UserError(f"--host {host} --port {port}: {os.strerror(e.errno or 0).lower()}{hint}") from e


def _in_url(host: str) -> str:
    return f"[{host}]" if ":" in host else host


def _is_loopback(host: str) -> bool:
    return host == "localhost" or host == "::1" or host.startswith("127.")


def _say(text: str, style: str = "") -> None:
    make_console(sys.stderr).print(narrate.line(text, style))
