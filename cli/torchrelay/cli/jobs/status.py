"""`torchrelay status`: asks the controllers of this user's running jobs."""

from __future__ import annotations

import asyncio
import dataclasses
import json
import os
import sys
from pathlib import Path

from rich.console import Console

from torchrelay.cli.controller_client.control import Control
from torchrelay.cli.display import render
from torchrelay.cli.display.report_view import report_view
from torchrelay.cli.display.teller import make_console
from torchrelay.cli.display.told_json import status_of
from torchrelay.cli.folders import folder
from torchrelay.cli.folders.meant_job import meant_job
from torchrelay.protocol.errors import ChannelClosedError, FatalError, UserError
from torchrelay.protocol.messages import JobStatus

REFRESH_S = 1.0


async def show_status(wanted: str | None, as_json: bool, watch: bool) -> int:
    """Print the job's status; with `watch` each second until the job is gone. Raises UserError if there is none."""
    state = folder.state_folder(os.environ)
    runs = [meant_job(state, wanted)] if wanted or watch else folder.one_of_each(state)
    if not runs:
        meant_job(state, None)  # says that there is none
    console = make_console(sys.stdout)
    found = [(run, await _ask(state, run)) for run in runs]
    _print(console, found, as_json)
    while watch:
        await asyncio.sleep(REFRESH_S)
        if not runs[0].is_running():
            return 0
        try:
            found = [(run := meant_job(state, runs[0].run_id), await _ask(state, run))]
        except (FatalError, UserError):
            if runs[0].is_running():
                raise
            return 0  # it ended between the two looks
        if console.is_terminal:
            console.clear()
        _print(console, found, as_json)
    return 0


async def _ask(state: Path, run: folder.KnownRun) -> JobStatus:
    secret = folder.read_secret(state / run.folder)
    async with Control(run.controller_host, run.controller_port, secret) as control:
        try:
            return await control.status()
        except ChannelClosedError as e:
            raise FatalError(f"the job {run.run_id} runs without its controller ({e})") from e


def _print(console: Console, found: list[tuple[folder.KnownRun, JobStatus]], as_json: bool) -> None:
    for number, (run, status) in enumerate(found):
        if as_json:
            print(json.dumps(dataclasses.asdict(status_of(status, run))), flush=True)
            continue
        if number:
            console.print()
        console.print(render.status_view(status, run))
        for coverage in status.coverage:
            console.print()
            console.print(report_view(coverage, status.world_size))
