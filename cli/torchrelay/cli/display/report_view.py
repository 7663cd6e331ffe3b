"""The protection report of a job, as people read it. No I/O."""

from __future__ import annotations

import dataclasses

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from torchrelay.cli.display import render
from torchrelay.protocol.messages import Coverage, RankGap
from torchrelay.protocol.names import GAP_EFFECTS
from torchrelay.protocol.security.transfer_protection import COSTS, MEANINGS
from torchrelay.protocol.words.level import Level

_ANSWERS = {"yes": "green", "partly": "yellow", "no": "red"}


def report_view(c: Coverage, world_size: int) -> RenderableType:
    """Return the whole report."""
    head = Table.grid(padding=(0, 2))
    head.add_row("protection", render.protection(Level(c.level), c.reason))
    if c.file:
        head.add_row("training loop", Text(f"{c.file}:{c.line}"))
    for number, text in enumerate(c.rehearsed):
        head.add_row("" if number else "rehearsals", Text(text))
    if c.tensors:
        state = f"{render.count(c.tensors, 'tensor')} of {render.size(c.device_state_bytes)} on each rank"
        head.add_row("state", Text(f"{state}, and a journal of {render.size(c.journal_bytes)} in each step"))
        head.add_row("cost", Text(_cost(c)))
        if c.copy_every:
            head.add_row("copies", Text(_copies(c)))
    if c.transfer_encryption:
        head.add_row("between machines", Text(_between_machines(c.transfer_encryption)))
    parts: list[RenderableType] = [head]
    if c.against:
        parts += [Text(), _against(c)]
    if c.gaps:
        parts += [Text(), Text("what is not protected", style="bold")]
        parts += [_gap(gap, world_size) for gap in c.gaps]
    if c.notes:
        parts += [Text(), Text("taken for granted", style="bold"), *(Text(f"  {note}") for note in c.notes)]
    return Group(*parts)


def replaced(c: Coverage, text: str, by: str) -> Coverage:
    """Return the report with `by` instead of `text`, wherever it names a file."""
    gaps = tuple(dataclasses.replace(g, text=g.text.replace(text, by), file=g.file.replace(text, by)) for g in c.gaps)
    notes = tuple(note.replace(text, by) for note in c.notes)
    told = dataclasses.replace(
        c, reason=c.reason.replace(text, by), file=c.file.replace(text, by), gaps=gaps, notes=notes
    )
    against = tuple(dataclasses.replace(a, how=a.how.replace(text, by)) for a in c.against)
    return dataclasses.replace(told, against=against)


def _cost(c: Coverage) -> str:
    work_s = c.head_s + c.gate_s
    share = f" ({100 * work_s / c.step_s:.1f} % of a step of {c.step_s * 1e3:.1f} ms)" if c.step_s else ""
    steps = f", in 95 % of steps below {100 * c.share_p95:.1f} %" if c.share_p95 else ""
    return (
        f"{work_s * 1e3:.2f} ms a step on the training thread{share}{steps}, "
        f"and {c.barrier_s * 1e3:.2f} ms or more of waiting; {render.size(c.memory_bytes)} of shared memory a rank"
    )


def _copies(c: Coverage) -> str:
    if not c.copy_bytes:
        return f"of the state in host memory, every {c.copy_every} steps; none is made yet"
    share_s = c.copy_s / c.copy_every
    return (
        f"{render.size(c.copy_bytes)} of each rank's state in host memory every {c.copy_every} steps, two of them kept; "
        f"{'training waits until all ranks have theirs: ' if c.copy_sync else ''}"
        f"one takes {c.copy_s * 1e3:.2f} ms of the training thread, {share_s * 1e3:.3f} ms a step"
    )


def _between_machines(chosen: str) -> str:
    choices = chosen.split(",")
    said = "; ".join(f"--transfer-encryption {choice}: {_meaning(choice)}" for choice in choices)
    return (
        said
        if len(choices) == 1
        else f"{said}. It has to be the same on all machines, or ranks may not be able to move between them"
    )


def _meaning(choice: str) -> str:
    if choice not in MEANINGS:
        return "unknown here"
    return f"{MEANINGS[choice]}; it takes {COSTS[choice]} of the rate at which tensors travel (docs/transfer.md)"


def _against(c: Coverage) -> Table:
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    table.add_column("against", no_wrap=True)
    table.add_column("", no_wrap=True)
    table.add_column("how")
    for row in c.against:
        table.add_row(row.what, Text(row.answer, style=_ANSWERS.get(row.answer, "default")), row.how)
    return table


def _gap(gap: RankGap, world_size: int) -> Text:
    where = f"{gap.file}:{gap.line}: " if gap.file else ""
    who = "" if len(gap.ranks) == world_size else f" [rank {render.listed(gap.ranks)}]"
    return Text(f"  {where}{gap.text}{who}\n    {GAP_EFFECTS.get(gap.effect, gap.effect)}")
