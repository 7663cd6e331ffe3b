"""Follows one migration of a running job to its end, and tells each turn of it."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import aclosing

from rich.console import Console

from torchrelay.cli.controller_client.control import Control
from torchrelay.cli.display import narrate
from torchrelay.cli.display.summary import UNDER_WAY, MigrationSummary, RunSummary, fold
from torchrelay.cli.display.waiting import waiting_for_bytes
from torchrelay.protocol import events
from torchrelay.protocol.errors import ChannelClosedError
from torchrelay.protocol.events import from_job_event


async def follow(
    console: Console, control: Control, migration: str, heard: Callable[[events.Occurrence], None] = lambda event: None
) -> MigrationSummary | None:
    """Return the finished record of the migration, or None if the job ended before. `heard` is called with each event."""
    summary = RunSummary()
    with waiting_for_bytes(console) as how_far:
        async with aclosing(control.watch(without_progress=True)) as stream:
            try:
                async for packed in stream:
                    event = from_job_event(packed)
                    summary, before = fold(summary, event, packed.time_s), summary
                    heard(event)
                    if getattr(event, "migration", None) == migration:
                        how_far(summary.moving)
                        if not (console.is_terminal and isinstance(event, events.MigrationProgressed)):
                            for text in narrate.notes(before, event, verbose=True):
                                console.print(text)
                    record = summary.migration(migration)
                    if record is not None and record.outcome != UNDER_WAY:
                        return record
            except ChannelClosedError:
                return None
    return None
