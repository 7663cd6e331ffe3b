"""`torchrelay history`: the runs that are kept, and how each went."""

from __future__ import annotations

import os
import sys
import time
from dataclasses import dataclass

from rich.table import Table
from rich.text import Text

from torchrelay.cli.display.answers import print_json
from torchrelay.cli.display.render import clock
from torchrelay.cli.display.teller import make_console
from torchrelay.cli.folders.history import KEEP, NOT_KEPT, KeptRun, history_folder, kept_runs
from torchrelay.dashboard import words
from torchrelay.dashboard.record import RunRecord
from torchrelay.protocol.errors import UserError
from torchrelay.protocol.events import JobFinished
from torchrelay.protocol.words.phases import COMMITTED

RUNNING, KILLED = "running", "no end was written: its command was killed"


@dataclass(frozen=True)
class RunLine:
    """How one run went. `goodput`: useful time divided by wall time, 0 to 1. `end`: in words."""

    run_id: str
    name: str
    working_folder: str
    command: tuple[str, ...]
    started_s: float
    lasted_s: float
    ranks: int
    steps: int
    goodput: float
    migrations: int
    migrations_done: int
    exit_code: int | None
    end: str


@dataclass(frozen=True)
class HistoryJson:
    """`torchrelay history --json`. `folder`: where runs are kept; empty where none are."""

    folder: str
    runs: tuple[RunLine, ...]


async def history(count: int, as_json: bool, wanted: str | None = None) -> int:
    """Print the newest `count` runs: of all runs, or of those with the wanted id or name."""
    where = history_folder(os.environ)
    runs = [run for run in kept_runs(where) if wanted is None or run.is_called(wanted)]
    lines = [line_of(run, time.time()) for run in runs[:count]]
    if as_json:
        print_json(HistoryJson(str(where or ""), tuple(lines)))
        return 0
    console = make_console(sys.stdout)
    if not lines:
        called = f" of the id or name {wanted}" if wanted else ""
        console.print(f"no run{called} is kept in {where}" if where else f"{NOT_KEPT}\n{KEEP}")
        return 0
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    for name in ("started", "run", "name", "lasted", "ranks", "steps", "goodput", "migrations", "end"):
        right = name in ("lasted", "ranks", "steps", "goodput", "migrations")
        table.add_column(name, justify="right" if right else "left", no_wrap=name != "end")
    for line in lines:
        moved = f"{line.migrations_done} of {line.migrations}" if line.migrations else "0"
        style = "green" if line.exit_code == 0 else "" if line.end == RUNNING else "red"
        table.add_row(
            clock(line.started_s),
            line.run_id,
            Text(line.name),
            words.duration(line.lasted_s),
            str(line.ranks),
            str(line.steps),
            words.percent(line.goodput) if line.steps else "-",
            moved,
            Text(line.end, style=style),
        )
    console.print(table)
    if len(runs) > count:
        console.print(f"and {len(runs) - count} older ones: --count {len(runs)}", style="dim")
    return 0


def line_of(run: KeptRun, now_s: float) -> RunLine:
    """Return how a kept run went, as far as its events can be read."""
    try:
        record = run.record()
    except UserError as e:
        return _line(run, RunRecord(), now_s, None, str(e))
    if record.ended is not None and isinstance(end := record.ended.what, JobFinished):
        by = f" (asked for by {end.by})" if end.by else ""
        done = "done" if end.exit_code == 0 else f"exit code {end.exit_code}: {end.reason}{by}"
        return _line(run, record, record.ended.time_s, end.exit_code, done)
    if run.head.is_running:
        return _line(run, record, now_s, None, RUNNING)
    return _line(run, record, record.newest_s, None, KILLED)


def _line(run: KeptRun, record: RunRecord, end_s: float, exit_code: int | None, end: str) -> RunLine:
    head, migrations = run.head, record.migrations.values()
    return RunLine(
        head.run_id,
        head.name,
        head.working_folder,
        head.command,
        head.started_s,
        max(0.0, end_s - (record.started_s or head.started_s)),
        record.world_size,
        max(record.boundary, 0),
        record.useful_time(end_s).share,
        sum(record.totals.by_outcome.values()) + sum(m.is_under_way for m in migrations),
        record.totals.by_outcome.get(COMMITTED, 0),
        exit_code,
        end,
    )
