"""`torchrelay migrate`: a planned migration, followed to its end."""

from __future__ import annotations

import os
import sys
from contextlib import aclosing

from rich.console import Console

from torchrelay.cli import folder, narrate
from torchrelay.cli.control import Control
from torchrelay.cli.summary import UNDER_WAY, MigrationSummary, RunSummary, fold
from torchrelay.cli.teller import make_console
from torchrelay.protocol.errors import ChannelClosedError
from torchrelay.protocol.events import from_job_event
from torchrelay.protocol.messages import MigrateReply
from torchrelay.protocol.names import EXIT_USAGE
from torchrelay.protocol.phases import COMMITTED

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
            console.print(narrate.line(f"refused: {reply.message}", "red"))
            return EXIT_USAGE
        if not wait:
            console.print(narrate.line(reply.message or f"{reply.migration} is under way"))
            return 0
        return _report(console, await _follow(console, control, reply), rank)


async def _follow(console: Console, control: Control, reply: MigrateReply) -> MigrationSummary | None:
    """The finished record of the migration, or None if the job ended before."""
    summary = RunSummary()
    async with aclosing(control.watch(without_progress=True)) as stream:
        try:
            async for packed in stream:
                event = from_job_event(packed)
                summary, before = fold(summary, event, packed.time_s), summary
                if getattr(event, "migration", None) == reply.migration:
                    for text in narrate.notes(before, event, verbose=True):
                        console.print(text)
                record = summary.migration(reply.migration)
                if record is not None and record.outcome != UNDER_WAY:
                    return record
        except ChannelClosedError:
            return None
    return None


def _report(console: Console, record: MigrationSummary | None, rank: int) -> int:
    if record is None:
        console.print(narrate.line("the job ended before the migration did", "red"))
        return EXIT_ABANDONED
    if record.outcome == COMMITTED and rank not in record.ranks:
        console.print(narrate.line(f"rank {rank} did not move: another one was lost meanwhile", "red"))
        return EXIT_ABANDONED
    return 0 if record.outcome == COMMITTED else EXIT_ABANDONED
