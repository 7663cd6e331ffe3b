"""`torchrelay history`: the runs that are kept, and how each went."""

from __future__ import annotations

import os
import sys
import time
from dataclasses import dataclass

from rich.text import Text

from torchrelay.cli.display.answers import print_json
from torchrelay.cli.display.fitting_table import table_of
from torchrelay.cli.display.teller import make_console
from torchrelay.cli.folders.history import KEEP, NOT_KEPT, RUNNING, KeptRun, history_folder, kept_runs
from torchrelay.dashboard import words
from torchrelay.dashboard.record import RunRecord
from torchrelay.protocol.errors import UserError
from torchrelay.protocol.words.phases import COMMITTED, SAVE


@dataclass(frozen=True)
class RunLine:
    """How one run went. `goodput`: useful time divided by wall time, 0 to 1. `end`: in words.

    `migrations`: all of them, without checkpoints that were asked for; `migrations_done`: committed ones.
    """

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
        if not where:
            console.print(f"{NOT_KEPT}\n{KEEP}")
        elif wanted:
            console.print(
                f"no run of the id or name {wanted} is kept in {where}\nhint: torchrelay history", markup=False
            )
        else:
            console.print(f"no run is kept in {where}")
        return 0
    numbers = ("lasted", "ranks", "steps", "goodput", "migrations")
    table = table_of("run", "name", "started", *numbers, "end", right=numbers)
    for line in lines:
        moved = f"{line.migrations_done} of {line.migrations}" if line.migrations else "0"
        style = "green" if line.exit_code == 0 else "" if line.end == RUNNING else "red"
        table.add_row(
            line.run_id,
            Text(line.name),
            _day(line.started_s, time.time()),
            words.duration(line.lasted_s),
            str(line.ranks),
            str(line.steps),
            words.percent(line.goodput) if line.steps else "-",
            moved,
            Text(line.end, style=style),
        )
    console.print(table)
    if len(runs) > count:
        console.print(f"{len(lines)} of {len(runs)} runs: --count {len(runs)} shows all", style="dim")
    return 0


def _day(time_s: float, now_s: float) -> str:
    """Return `29 Nov 18:02`, and of another year `29 Nov 2025`."""
    then = time.localtime(time_s)
    now = time.localtime(now_s)
    return time.strftime("%d %b %H:%M" if then.tm_year == now.tm_year else "%d %b %Y", then)


def line_of(run: KeptRun, now_s: float) -> RunLine:
    """Return how a kept run went, as far as its events can be read."""
    try:
        record = run.record()
    except UserError as e:
        return _line(run, RunRecord(), now_s, None, str(e))
    exit_code, end = run.end(record)
    ended_s = record.ended.time_s if record.ended is not None else now_s if end == RUNNING else record.newest_s
    return _line(run, record, ended_s, exit_code, end)


def _line(run: KeptRun, record: RunRecord, end_s: float, exit_code: int | None, end: str) -> RunLine:
    head = run.head
    migrations = record.migrations.values()
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
        sum(record.totals.by_outcome.values()) + sum(m.is_under_way and m.kind != SAVE for m in migrations),
        record.totals.by_outcome.get(COMMITTED, 0),
        exit_code,
        end,
    )
