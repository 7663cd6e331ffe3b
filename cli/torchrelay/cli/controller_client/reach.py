"""Finds the job that a command means, and opens a connection to its controller."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from torchrelay.cli.controller_client.control import Control
from torchrelay.cli.folders import folder
from torchrelay.cli.folders.meant_job import meant_job
from torchrelay.protocol.errors import ChannelClosedError, FatalError


@asynccontextmanager
async def controller_of(state: Path, wanted: str | None) -> AsyncIterator[tuple[folder.KnownRun, Control]]:
    """Yield the job and an open connection to its controller. `wanted`: the job's id or name.

    Raises UserError if there is no such job, FatalError if its controller does not answer.
    """
    run = meant_job(state, wanted)
    async with Control(run.controller_host, run.controller_port, folder.read_secret(state / run.folder)) as control:
        try:
            yield run, control
        except ChannelClosedError as e:
            raise FatalError(
                f"no answer from the controller of job {run.run_id}: the job is over, or goes on without it ({e})"
            ) from e
