"""What people read, as rich renderables made from plain records. No I/O."""

from __future__ import annotations

from collections.abc import Iterable

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from torchrelay.cli.display.fitting_table import table_of
from torchrelay.cli.display.rungs import in_words
from torchrelay.cli.display.summary import UNDER_WAY, MigrationSummary, RestartSummary, RunSummary
from torchrelay.cli.folders.folder import KnownRun, RungTaken
from torchrelay.cli.folders.shown_run import clock
from torchrelay.dashboard import words
from torchrelay.dashboard.words import size as size
from torchrelay.protocol import events
from torchrelay.protocol.messages import JobStatus
from torchrelay.protocol.words.level import Level
from torchrelay.protocol.words.phases import CHECKPOINT, COMMITTED, DOWNTIME_ROWS, SAVE, Phase

BAR_CELLS = 10

SAVING_ROW = Phase.CHECKPOINTING.value

STATE_STYLES = {"running": "green", "standing": "yellow", "lost": "red", "starting": "dim", "finished": "dim"}
LEVEL_STYLES = {
    Level.PENDING: "dim",
    Level.ARMED: "dim",
    Level.UNPROTECTED: "red",
    Level.PARTLY: "yellow",
    Level.PROTECTED: "green",
}


def count(number: int, noun: str) -> str:
    """Return `1 spare`, `2 spares`."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def listed(values: Iterable[object]) -> str:
    return ", ".join(map(str, values))


def seconds(value_s: float) -> str:
    return f"{value_s:.2f}"


def phase(value: str) -> str:
    """Return a phase as the head of a table has it."""
    return value.replace("_", " ")


def spares(now: events.SparesChanged) -> str:
    """Return `1 of 2 spares ready, 1 being made`."""
    making = f", {now.making} being made" if now.making else ""
    return f"{now.ready} of {count(now.wanted, 'spare')} ready{making}"


def step(boundary: int) -> str:
    """Return a boundary as people count steps; `-` before the first one."""
    return str(boundary) if boundary >= 0 else "-"


def progress_line(summary: RunSummary) -> Text:
    """Return the one line that a terminal shows while the job runs."""
    parts = [count(summary.ranks, "rank")] if summary.moving is None else []
    running = next((m for m in reversed(summary.migrations) if m.outcome == UNDER_WAY), None)
    if summary.boundary >= 0:
        parts.append(f"step {summary.boundary}")
        if summary.moving is None:
            parts.append(f"{summary.steps_per_s:.1f} steps/s")
    else:
        parts.append("setting up")
    if summary.moving is None:  # else the line has something else to tell
        pool = summary.pool
        parts.append(spares(pool) if pool is not None and pool.wanted else count(summary.spares, "spare"))
    line = Text.assemble((" torchrelay  ", "bold"), " · ".join(parts))
    if running is not None:
        everybody = "ranks save a checkpoint" if running.kind == SAVE else "ranks are entering"
        who = f"rank {listed(running.ranks)} is moving" if running.ranks else everybody
        line.append(f" · {who}: {phase(running.phase) or 'starting'}", style="yellow")
        if summary.moving is not None:
            line.append(f" {bar(words.share_done(summary.moving))} {words.how_far(summary.moving)}", style="yellow")
    elif summary.protection is not Level.PENDING:
        line.append(f" · {summary.protection.words}", style=LEVEL_STYLES[summary.protection])
    return line


def bar(share: float) -> str:
    """Return `█████░░░░░` of BAR_CELLS. `share`: from 0 to 1."""
    full = int(share * BAR_CELLS)
    return "█" * full + "░" * (BAR_CELLS - full)


def protection(level: Level, reason: str) -> Text:
    return Text.assemble((level.words, LEVEL_STYLES[level]), f": {reason}" if reason else "")


def migrations_table(migrations: tuple[MigrationSummary, ...]) -> RenderableType:
    """Return every migration with its outcome, then the seconds of downtime by phase, with their sum."""
    what = table_of(
        "migration", "rank", "kind", "outcome", "spare", "redone", "moved", "reason", right=("rank", "redone")
    )
    for m in migrations:
        what.add_row(
            m.migration,
            listed(m.ranks),
            m.kind,
            Text(m.outcome, style="green" if m.outcome == COMMITTED else "red"),
            listed(m.spares) or "-",
            str(m.steps_redone),
            size(m.transferred_bytes),
            Text(m.reason if m.outcome in (COMMITTED, CHECKPOINT) else m.outcome_reason or m.reason),
        )
    saved = any(m.downtime_s.get(SAVING_ROW) for m in migrations)
    rows = tuple(row for row in DOWNTIME_ROWS if row != SAVING_ROW or saved)  # one column more does not fit for nothing
    names = tuple(map(phase, rows))
    when = table_of("seconds of", *names, "sum", right=(*names, "sum"), gap=1)  # 80 columns
    for m in migrations:
        when.add_row(m.migration, *(seconds(m.downtime_s.get(p, 0.0)) for p in rows), seconds(m.total_s))
    if len(migrations) > 1:
        sums = (sum(m.downtime_s.get(p, 0.0) for m in migrations) for p in rows)
        total = sum(m.total_s for m in migrations)
        when.add_row("all", *map(seconds, sums), seconds(total), style="bold")
    return Group(what, Text(), when)


def restarts_table(restarts: tuple[RestartSummary, ...]) -> RenderableType:
    """Return every restart of all processes, with the steps and seconds that it cost."""
    table = table_of(
        "restart", "rung", "at step", "lost", "seconds", "why", right=("restart", "at step", "lost", "seconds")
    )
    for r in restarts:
        down = seconds(r.down_s) if r.down_s is not None else "-"
        table.add_row(str(r.restart), r.rung, step(r.boundary), str(r.steps), down, Text(r.reason))
    return table


def rungs_table(taken: tuple[RungTaken, ...]) -> RenderableType:
    """Return each rung that was taken after losses, with the steps and seconds that it cost."""
    table = table_of("rung", "times", "redone", "seconds", right=("times", "redone", "seconds"))
    for r in taken:
        table.add_row(r.rung, str(r.times), str(r.steps), seconds(r.seconds))
    return table


def spares_view(status: JobStatus) -> RenderableType:
    """Return what `torchrelay spares` shows: the count, each process, and what is left to do."""
    counts = events.SparesChanged(status.spares_wanted, status.spares_warm, status.spares_making, status.spares_reason)
    head = Text(spares(counts) + (f": {counts.reason}" if counts.reason else ""))
    parts: list[RenderableType] = [head]
    if status.spares:
        table = table_of("spare", "node", "pid", "state", "for", "why", right=("pid",))
        for s in status.spares:
            style = {"ready": "green", "quarantined": "red"}.get(s.state, "yellow")
            table.add_row(s.worker, s.node, str(s.pid), Text(s.state, style=style), age(s.age_s), Text(s.reason))
        parts += [Text(), table]
    if status.spares_warm == 0 and not status.spares_making:
        parts.append(Text(f"hint: torchrelay spares add 1 --run {status.run_id}", style="dim"))
    return Group(*parts)


def age(seconds_s: float) -> str:
    """Return `12 s`, `3 min`, `2 h`, `4 d`."""
    for size_s, unit in ((86400, "d"), (3600, "h"), (60, "min")):
        if seconds_s >= 2 * size_s:
            return f"{seconds_s / size_s:.0f} {unit}"
    return f"{seconds_s:.0f} s"


def status_view(status: JobStatus, run: KnownRun) -> RenderableType:
    """Return what `torchrelay status` shows of one job."""
    head = Table.grid(padding=(0, 2))
    name = f" {run.name}" if run.name else ""
    head.add_row("job", Text.assemble((status.run_id, "bold"), name))
    if run.working_folder:
        head.add_row("folder", Text(run.working_folder))
        head.add_row("started", clock(run.started_s))
    head.add_row("ranks", f"{status.world_size}, generation {status.generation}, {status.steps_per_s:.1f} steps/s")
    wanted = max(status.spares_wanted, status.spares_total)
    making = f", {status.spares_making} being made" if status.spares_making else ""
    why = f": {status.spares_reason}" if status.spares_reason else ""
    head.add_row("spares", Text(f"{status.spares_warm} ready of {wanted}{making}{why}"))
    if not status.coverage:  # which begins with it
        head.add_row("protection", protection(Level(status.protection), status.protection_reason))
    last = f"{status.migrations_done}; last: {status.last_migration}" if status.last_migration else "none"
    head.add_row("migrations", Text(last))
    for moving in status.moving:
        head.add_row(
            phase(moving.phase), Text(f"{bar(words.share_done(moving))} {words.how_far(moving)}", style="yellow")
        )
    if status.ranks_spread or status.spread_reason:
        moved = (
            f"{count(status.ranks_spread, 'rank')} moved to another machine for the job's protection"
            if status.ranks_spread
            else ""
        )
        head.add_row("machines", Text("; ".join(filter(None, (moved, status.spread_reason)))))
    for number, text in enumerate(in_words(run.rungs)):
        head.add_row("" if number else "rungs", Text(text))
    for number, text in enumerate(run.restarts):
        head.add_row("" if number else "restarts", Text(text))
    for number, text in enumerate(status.quarantine):
        head.add_row("" if number else "quarantine", Text(text, style="yellow"))
    for number, text in enumerate(status.health):
        head.add_row("" if number else "health", Text(text))
    ranks = table_of("rank", "worker", "node", "pid", "step", "phase", "state", right=("rank", "pid", "step"))
    for r in status.ranks:
        state = Text(r.state, style=STATE_STYLES.get(r.state, "default"))
        ranks.add_row(str(r.rank), r.worker, r.node, str(r.pid), step(r.boundary), r.phase, state)
    parts: list[RenderableType] = [head, Text(), ranks]
    return Group(*parts)
