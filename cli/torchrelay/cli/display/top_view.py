"""What `torchrelay top` shows, made of what is known of each job. No I/O."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from rich.console import Group, RenderableType
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from torchrelay.cli.display import render
from torchrelay.dashboard import words
from torchrelay.dashboard.headline import headline, to_do
from torchrelay.dashboard.run_facts import MigrationRecord
from torchrelay.dashboard.view import Seen
from torchrelay.protocol.messages import JobStatus
from torchrelay.protocol.words.phases import ACHIEVED

ROWS_OF_RANKS = 16
"""More ranks than this are one sign each."""
SIGNS = 512
MIGRATIONS_SHOWN = 3
_TONES = {"well": "green", "working": "yellow", "notice": "yellow", "act": "bold red", "over": "dim"}
_SIGN_OF = {"running": "■", "standing": "▣", "lost": "✗", "starting": "□", "finished": "·"}


def top_view(jobs: Sequence[Seen]) -> RenderableType:
    """All of it; as many lines as it takes."""
    foot = Text("q ends this view, and no job", style="dim")
    if not jobs:
        return Group(Text("no job of this user runs on this machine; this shows the next one that does"), foot)
    return Group(*map(_job, jobs), foot)


def _job(seen: Seen) -> RenderableType:
    r, status = seen.record, seen.status
    head = headline(r, seen.now_s, seen.unreachable)
    spent = r.useful_time(seen.now_s)
    facts = [f"step {render.step(r.boundary)}", f"{r.steps_per_s:.1f} steps/s"]
    if r.first_step_s is not None:
        facts.append(f"goodput {words.percent(spent.share)}")
    parts: list[RenderableType] = [
        Text.assemble((head.text, _TONES.get(head.tone, "")), f"  {head.detail}" if head.detail else ""),
        Text(" · ".join(facts)),
    ]
    if words.sentence(r.level_reason) not in head.detail:
        parts.append(render.protection(r.level, r.level_reason))
    if r.pool is not None:
        parts.append(Text(render.spares(r.pool) + (f": {r.pool.reason}" if r.pool.reason else "")))
    parts += _ranks(status) if status is not None else []
    if shown := list(r.migrations.values())[-MIGRATIONS_SHOWN:]:
        parts.append(_migrations(shown, seen.now_s))
    if r.under_way is not None and (moving := r.under_way.progress) is not None:
        how_far = f"{render.phase(moving.phase)} {render.bar(words.share_done(moving))} {words.how_far(moving)}"
        parts.append(Text(how_far, style="yellow"))
    for left in to_do(r):
        parts.append(Text(f"to do: {left.text}", style="yellow"))
        parts += [Text(f"  {left.command}", style="bold")] if left.command else []
    return Panel(Group(*parts), title=Text(f"{r.run_id}  {seen.command}"), title_align="left", border_style="dim")


def _ranks(status: JobStatus) -> list[RenderableType]:
    counts = Counter(r.state for r in status.ranks)
    told = ", ".join(f"{number:,} {state}" for state, number in counts.most_common())
    parts: list[RenderableType] = [Text(f"{words.count(status.world_size, 'rank')}: {told}")]
    if len(status.ranks) > ROWS_OF_RANKS:
        signs = Text()
        for rank in status.ranks[:SIGNS]:
            signs.append(_SIGN_OF.get(rank.state, "?"), style=render.STATE_STYLES.get(rank.state, "default"))
        if len(status.ranks) > SIGNS:
            signs.append(f" and {len(status.ranks) - SIGNS:,} more", style="dim")
        return [*parts, signs]
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    for name in ("rank", "worker", "node", "step", "phase", "state"):
        table.add_column(name, justify="right" if name in ("rank", "step") else "left")
    for rank in status.ranks:
        state = Text(rank.state, style=render.STATE_STYLES.get(rank.state, "default"))
        table.add_row(str(rank.rank), rank.worker, rank.node, render.step(rank.boundary), rank.phase, state)
    return [*parts, table]


def _migrations(shown: Sequence[MigrationRecord], now_s: float) -> Table:
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    for name in ("migration", "ranks", "kind", "outcome", "downtime", "when", "why"):
        table.add_column(name, no_wrap=name != "why")
    for m in shown:
        outcome = f"{m.outcome}: {render.phase(m.phase)}" if m.is_under_way and m.phase else m.outcome
        style = "yellow" if m.is_under_way else "green" if m.outcome in ACHIEVED else "red"
        downtime = words.duration(m.downtime_s) if m.finished is not None else "-"
        when = f"{words.duration(max(0.0, now_s - m.started_s))} ago"
        table.add_row(m.key, render.listed(m.ranks), m.kind, Text(outcome, style=style), downtime, when, Text(m.reason))
    return table
