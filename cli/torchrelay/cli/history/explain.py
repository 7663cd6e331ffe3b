"""`torchrelay explain`: the whole story of one migration."""

from __future__ import annotations

import json
import os
import sys
import time
from dataclasses import asdict

from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from torchrelay.cli.display.teller import make_console
from torchrelay.cli.folders.shown_run import clock
from torchrelay.cli.history.find import find_record
from torchrelay.dashboard import words
from torchrelay.dashboard.record import RunRecord
from torchrelay.dashboard.run_facts import MigrationRecord
from torchrelay.dashboard.story import ACT, DECIDED, SEEN, ToldMigration, tell
from torchrelay.protocol.errors import UserError

_STYLES = {SEEN: "yellow", DECIDED: "cyan"}


async def explain(migration: str | None, wanted: str | None, as_json: bool) -> int:
    """Print the story of a migration, and return 0. Raises UserError if there is no such run or migration."""
    record = await find_record(os.environ, wanted)
    told = tell(record, choose_migration(record, migration), time.time())
    if as_json:
        print(json.dumps({"run_id": record.run_id, **asdict(told)}))
        return 0
    make_console(sys.stdout).print(story_view(record.run_id, told))
    return 0


def choose_migration(record: RunRecord, wanted: str | None) -> MigrationRecord:
    """Return the named migration, or else the latest. Raises UserError if there is none."""
    if not record.migrations:
        raise UserError(
            f"run {record.run_id} has had no migration: nothing was lost, and nothing was moved\nhint: torchrelay history"
        )
    if wanted is None:
        return list(record.migrations.values())[-1]
    found = record.migrations.get(wanted) or next(
        (m for m in reversed(list(record.migrations.values())) if m.name == wanted), None
    )
    if found is None:
        known = list(record.migrations)[-12:]
        raise UserError(
            f"run {record.run_id} has no migration {wanted}; it has {', '.join(known)}\n"
            f"hint: torchrelay explain {known[-1]} --run {record.run_id}"
        )
    return found


def story_view(run_id: str, told: ToldMigration) -> RenderableType:
    """Return the story as people read it."""
    head = Text.assemble((told.title, "bold red" if told.tone == ACT else "bold"))
    when = Text(f"run {run_id}, migration {told.key}, {clock(told.started_s)}, {told.outcome}", style="dim")
    parts: list[RenderableType] = [head, when, Text(told.summary), Text()]
    if told.to_do:
        parts += [Text("What is left to do", style="bold"), *map(_indented, told.to_do), Text()]
    parts += [
        Text("What it cost", style="bold"),
        *map(_indented, told.costs),
        Text(),
        Text("What happened", style="bold"),
    ]
    table = Table(box=None, show_header=False, padding=(0, 2, 0, 0))
    table.add_column(justify="right", style="dim", no_wrap=True)
    table.add_column(no_wrap=True)
    table.add_column()
    for line in told.lines:
        took = f", took {words.duration(line.took_s)}" if line.took_s is not None else ""
        after = f"{'-' if line.after_s < 0 else '+'}{words.duration(abs(line.after_s))}"
        what = Text.assemble(line.text, (f"  by {line.who}{took}", "dim"))
        table.add_row(after, Text(line.kind, style=_STYLES.get(line.kind, "green")), what)
    return Group(*parts, table)


def _indented(text: str) -> RenderableType:
    return Padding(Text(text), (0, 0, 0, 2))
