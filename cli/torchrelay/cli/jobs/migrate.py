"""`torchrelay migrate`: a planned migration, followed to its end."""

from __future__ import annotations

import os
import sys

from rich.console import Console

from torchrelay.cli.controller_client.control import Control
from torchrelay.cli.display import narrate
from torchrelay.cli.display.summary import MigrationSummary
from torchrelay.cli.display.teller import make_console
from torchrelay.cli.folders import folder
from torchrelay.cli.jobs.following import follow
from torchrelay.protocol.errors import ChannelClosedError
from torchrelay.protocol.messages import JobStatus
from torchrelay.protocol.names import EXIT_USAGE
from torchrelay.protocol.words.phases import COMMITTED

EXIT_ABANDONED = 1


async def migrate(rank: int, reason: str, wanted: str | None, wait: bool) -> int:
    """0 committed or, without `wait`, accepted; 1 abandoned or too late; 2 refused. Raises UserError if there is no such job."""
    state = folder.state_folder(os.environ)
    run = folder.choose_run(state, wanted)
    console = make_console(sys.stderr)
    async with Control(run.controller_host, run.controller_port, folder.read_secret(state / run.folder)) as control:
        try:
            reply = await control.migrate(rank, reason)
        except ChannelClosedError as e:
            console.print(narrate.line(f"no answer: the job is over, or has lost its controller ({e})", "red"))
            return EXIT_ABANDONED
        if not reply.accepted:
            console.print(narrate.line(f"rank {rank} does not move: {reply.message}", "red"))
            console.print(narrate.hint(_advice(await control.status(), run.run_id)))
            return EXIT_USAGE
        if not wait:
            console.print(narrate.line(reply.message or f"{reply.migration} is under way"))
            return 0
        return _report(console, await follow(console, control, reply.migration), rank)


def _advice(status: JobStatus, run_id: str) -> str:
    """The command that leads on from a refusal."""
    lacks_spares = not status.spares_warm and not status.spares_making and not status.spares_reason
    return f"torchrelay spares add 1 --run {run_id}" if lacks_spares else f"torchrelay status --run {run_id}"


def _report(console: Console, record: MigrationSummary | None, rank: int) -> int:
    if record is None:
        console.print(narrate.line("the job ended before the migration did", "red"))
        return EXIT_ABANDONED
    if record.outcome == COMMITTED and rank not in record.ranks:
        console.print(narrate.line(f"rank {rank} did not move: another one was lost meanwhile", "red"))
        return EXIT_ABANDONED
    return 0 if record.outcome == COMMITTED else EXIT_ABANDONED
