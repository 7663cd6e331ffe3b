"""What `torchrelay top` shows, made of what is known of each job. No I/O."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from rich.console import Group, RenderableType
from rich.panel import Panel
from rich.text import Text

from torchrelay.cli.display import render
from torchrelay.cli.display.fitting_table import table_of
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
    """Return the whole view, with as many lines as it takes.

    A terminal shows the first of them, so what matters most comes first in each job, and its ranks last.
    """
    foot = Text("q ends this view, and no job", style="dim")
    if not jobs:
        return Group(Text("no job of this user runs on this machine; this shows the next one that does"), foot)
    return Group(*map(_job, jobs), foot)


def _job(seen: Seen) -> RenderableType:
    r = seen.record
    status = seen.status
    head = headline(r, seen.now_s, seen.unreachable)
    spent = r.useful_time(seen.now_s)
    facts = [f"step {render.step(r.boundary)}", f"{r.steps_per_s:.1f} steps/s"]
    if r.first_step_s is not None:
        facts.append(f"goodput {words.percent(spent.share)}")
    parts: list[RenderableType] = [Text(head.text, _TONES.get(head.tone, ""))]
    parts += [Text(head.detail, style="dim")] if head.detail else []
    for left in to_do(r):
        parts.append(Text(f"to do: {left.text}", style="yellow"))
        parts += [Text(f"  {left.command}", style="bold")] if left.command else []
    parts.append(Text(" · ".join(facts)))
    if words.sentence(r.level_reason) not in head.detail:
        parts.append(render.protection(r.level, r.level_reason))
    if r.pool is not None:
        parts.append(Text(render.spares(r.pool) + (f": {r.pool.reason}" if r.pool.reason else "")))
    if r.under_way is not None and (moving := r.under_way.progress) is not None:
        how_far = f"{render.phase(moving.phase)} {render.bar(words.share_done(moving))} {words.how_far(moving)}"
        parts.append(Text(how_far, style="yellow"))
    for m in list(r.migrations.values())[-MIGRATIONS_SHOWN:]:
        parts += _migration(m, seen.now_s)
    parts += _ranks(status) if status is not None else []
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
    table = table_of("rank", "worker", "node", "step", "phase", "state", right=("rank", "step"))
    for rank in status.ranks:
        state = Text(rank.state, style=render.STATE_STYLES.get(rank.state, "default"))
        table.add_row(str(rank.rank), rank.worker, rank.node, render.step(rank.boundary), rank.phase, state)
    return [*parts, table]


def _migration(m: MigrationRecord, now_s: float) -> list[RenderableType]:
    """Return two lines: what became of it, and why it began. A table has no room for the reason on 80 columns."""
    outcome = f"{m.outcome}: {render.phase(m.phase)}" if m.is_under_way and m.phase else m.outcome
    style = "yellow" if m.is_under_way else "green" if m.outcome in ACHIEVED else "red"
    who = words.ranks(m.ranks) if m.ranks else "no rank"
    cost = f", {words.duration(m.downtime_s)} of downtime" if m.finished is not None else ""
    when = words.duration(max(0.0, now_s - m.started_s))
    head = Text.assemble(f"migration {m.key}: {who}, {m.kind}, ", (outcome, style), f"{cost}, {when} ago")
    return [head, Text(f"  {m.reason}", style="dim")]
