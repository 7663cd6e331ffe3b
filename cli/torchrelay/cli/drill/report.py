"""What a drill has found, as people read it. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from torchrelay.cli.display import render
from torchrelay.cli.drill import promise
from torchrelay.cli.drill.advice import ScriptChange
from torchrelay.cli.drill.practice import StruckCell
from torchrelay.cli.drill.result import Drill
from torchrelay.cli.drill.undisturbed import Undisturbed
from torchrelay.cli.struck_runs.cells import KINDS, PHASES

WORDS = {
    promise.IDENTICAL: "identical",
    promise.OTHERWISE: "same numbers, more done again",
    promise.REFUSED: "refused as announced",
    promise.NOT_STRUCK: "never struck",
    promise.FALSE_PROMISE: "FALSE PROMISE",
    promise.WRONG: "WRONG NUMBERS",
}
STYLES = {
    promise.IDENTICAL: "green",
    promise.OTHERWISE: "yellow",
    promise.REFUSED: "cyan",
    promise.NOT_STRUCK: "dim",
    promise.FALSE_PROMISE: "red",
    promise.WRONG: "bold white on red",
}


def as_text(drill: Drill) -> list[RenderableType]:
    """Return the report: whether the script is deterministic, the table of faults, reasons, costs, what to change, the score."""
    found = drill.found
    is_judged = found.agreement.is_deterministic
    parts: list[RenderableType] = [Text(_judged(found)) if is_judged else _not_deterministic(found)]
    if not is_judged and not found.differences:
        return parts
    if found.differences:
        parts.append(Text("with torchrelay and without a fault it is another run:", style="bold red"))
        parts += [Text(f"  {text}") for text in found.differences]
    if drill.struck:
        parts += [Text(), _table(drill.struck), *_reasons(drill.struck)]
    parts += [Text(), Text(_cost(found))]
    if drill.changes:
        parts += [Text(), Text("what to change in the script", style="bold"), *map(_change, drill.changes)]
    return [*parts, Text(), Text(closing(drill), style="bold")]


def _not_deterministic(found: Undisturbed) -> Text:
    differs = found.agreement.differs
    first = differs.get("parameters", "")
    if found.reads_unwritten:
        return Text(
            "not deterministic: the script reads memory that it has never written, such as parameters of to_empty() that nothing "
            f"initialises: with torchrun, too, it computes something else where that memory is not zero, first at {first}. "
            "Nothing can be told about faults from such a script",
            style="yellow",
        )
    return Text(
        "not deterministic: two runs with torchrun, without torchrelay, differ from each other, first in the parameters of "
        f"{first}. Nothing can be told about faults from such a script: give it seeds, and see "
        "torch.use_deterministic_algorithms",
        style="yellow",
    )


def _judged(found: Undisturbed) -> str:
    end = f"cut off after {found.steps} steps" if found.ended_early else f"{found.steps} steps, to the script's end"
    launcher = "torchrelay" if found.reference.entropy else "torchrun"
    text = f"two runs with {launcher} are bitwise the same ({end}): {', '.join(found.agreement.judged)}"
    if found.reference.entropy:
        text += ". The script leaves its seeds to chance, so that runs with torchrun differ; torchrelay gave it the same chance"
    left_out = [f"{name} ({where})" for name, where in found.agreement.differs.items()]
    return f"{text}. Left to chance by the script, and not judged: {', '.join(left_out)}" if left_out else text


def _table(struck: Sequence[StruckCell]) -> Table:
    """Return a table: a row for each kind, a column for each phase. Several faults in one place stand side by side."""
    present = {(s.cell.kind, s.cell.phase) for s in struck}
    phases = [p for p in PHASES if any(phase == p for _, phase in present)]
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    table.add_column("fault", no_wrap=True)
    for phase in phases:
        table.add_column(phase)
    for kind in KINDS:
        if any(k == kind for k, _ in present):
            table.add_row(kind, *(_cell(s for s in struck if (s.cell.kind, s.cell.phase) == (kind, p)) for p in phases))
    return table


def _cell(struck: Iterable[StruckCell]) -> Text:
    text = Text()
    for number, s in enumerate(struck):
        text.append(", " if number else "")
        text.append(s.outcome.outcome, STYLES[s.outcome.outcome])
    return text


def _reasons(struck: Sequence[StruckCell]) -> list[Text]:
    """Return a line for each fault that is not identical, worst first."""
    bad = [s for s in struck if s.outcome.outcome != promise.IDENTICAL]
    bad.sort(key=lambda s: -promise.OUTCOMES.index(s.outcome.outcome))
    return [
        Text.assemble(
            (WORDS[s.outcome.outcome], STYLES[s.outcome.outcome]),
            f" {s.cell.fault}: {s.outcome.reason or s.outcome.how}",
        )
        for s in bad
    ]


def _cost(found: Undisturbed) -> str:
    cost = found.cost
    if cost is None:
        return "cost  too few steps to say"
    more_bytes = max(cost.relay_memory_bytes - cost.plain_memory_bytes, 0)
    return (
        f"cost  a step takes {cost.plain_step_s * 1e3:.2f} ms with torchrun and {cost.relay_step_s * 1e3:.2f} ms with torchrelay "
        f"({cost.ratio:.3f} times as long), each measured once; {render.size(more_bytes)} more memory a rank"
    )


def _change(change: ScriptChange) -> Text:
    where = f"{change.file}:{change.line}: " if change.file else ""
    return Text(f"  {where}{change.text}\n    {change.effect}" + (f"\n    {change.advice}" if change.advice else ""))


def closing(drill: Drill) -> str:
    """Return the result in one line."""
    counts = drill.counts
    judged = len(drill.struck) - counts[promise.NOT_STRUCK]
    others = [f"{counts[name]} {WORDS[name]}" for name in promise.OUTCOMES[1:] if counts[name]]
    more = f"; {', '.join(others)}" if others else ""
    return f"{counts[promise.IDENTICAL]} of {judged} faults left bitwise the same numbers{more}"
