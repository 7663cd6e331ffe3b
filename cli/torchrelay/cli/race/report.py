"""The race as a table, for the terminal and for a page. Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from rich.console import RenderableType
from rich.table import Table

from torchrelay.cli.race.figures import Figures
from torchrelay.cli.race.program import BATCH
from torchrelay.cli.race.results import ArmResult, Together

BEGIN = "<!-- race: begin -->"
END = "<!-- race: end -->"


@dataclass(frozen=True)
class About:
    """What was raced, and on what. `arms`: by name, what stands in the list below the table. `left_out`: with the reason."""

    title: str
    machine: str
    faults: str
    arms: Mapping[str, str]
    left_out: Mapping[str, str]
    lines_changed: Mapping[str, int]
    spares: Mapping[str, int]
    batch: int = BATCH
    """Samples of one rank in one step; 0: not known."""


def rows(found: Sequence[Together], about: About) -> list[list[str]]:
    """Return the rows of the table. The first one has the names of the arms."""
    names = [t.arm for t in found]
    table = [["", *names]]
    for label, value in _LINES:
        table.append([label, *(value(t, about) for t in found)])
    return table


def _figure(pick: Callable[[Figures], float | None], digits: int) -> Callable[[Together, About], str]:
    def value(t: Together, _: About) -> str:
        middle = t.middle(pick(f) for _, f in t.whole)
        return "-" if middle is None else f"{middle:.{digits}f}"

    return value


def _wall(t: Together, _: About) -> str:
    middle = t.middle(r.wall_s for r, _ in t.whole)
    return "-" if middle is None else f"{middle:.1f}"


def _ended(t: Together, _: About) -> str:
    return f"{len(t.whole)} of {len(t.runs)}"


def _struck(t: Together, _: About) -> str:
    missed = sum(r.missed for r in t.runs)
    return f"{sum(len(r.struck) for r in t.runs)}" + (f" ({missed} found nothing to strike)" if missed else "")


def _ratio(t: Together, _: About) -> str:
    middle = t.middle(t.ratios)
    if middle is None:
        return "-"
    spread = f" ({min(t.ratios):.3f} to {max(t.ratios):.3f})" if len(t.ratios) > 1 else ""
    return f"{middle:.3f}{spread}"


def _samples(t: Together, about: About) -> str:
    middle = t.middle(f.rank_steps_missed for _, f in t.whole if f.steps_redone is not None)
    if middle is None:
        return "-"
    return f"{middle * about.batch:.0f}" if about.batch else f"{middle:.0f} x batch"


def _each(t: Together, _: About) -> str:
    costs = [cost for _, f in t.whole for cost in f.costs]
    still = t.middle(c.stall_s for c in costs)
    again = t.middle(c.redo_s for c in costs)
    return "-" if still is None or again is None else f"{still:.2f} + {again:.2f}"


def _phases(t: Together, _: About) -> str:
    moves = [r.phases_s for r, _ in t.whole if r.phases_s]
    if not moves:
        return "not told"
    parts = ((name, t.middle(m.get(name, 0.0) for m in moves) or 0.0) for name in moves[0])
    return ", ".join(f"{name.replace('_', ' ')} {seconds:.2f}" for name, seconds in parts if seconds >= 0.005)


def _loss(t: Together, _: About) -> str:
    return ", ".join(dict.fromkeys(r.loss for r, _ in t.whole if r.loss)) or "-"


def _bitwise(t: Together, _: About) -> str:
    known = [r.is_bitwise for r in t.runs if r.is_bitwise is not None]
    if not known:
        return "-"
    return "yes" if all(known) else "no" if not any(known) else f"{sum(known)} of {len(known)}"


_LINES: tuple[tuple[str, Callable[[Together, About], str]], ...] = (
    ("runs that came to their end", _ended),
    ("faults that struck", _struck),
    ("whole command, s", _wall),
    ("first to last step, s", _figure(lambda f: f.training_s, 1)),
    ("median step, ms", _figure(lambda f: 1000 * f.step_s, 0)),
    ("effective steps/min", _figure(lambda f: f.effective_steps_per_min, 1)),
    ("ratio to baseline", _ratio),
    ("steps done again", _figure(lambda f: f.steps_redone, 0)),
    ("samples lost", _samples),
    ("downtime, s, all faults", _figure(lambda f: f.downtime_s, 2)),
    ("one fault, s: standing + doing again", _each),
    ("phases of the downtime, s", _phases),
    ("wasted, s x ranks", _figure(lambda f: f.wasted_rank_s, 1)),
    ("final loss", _loss),
    ("bitwise equal to baseline", _bitwise),
    ("lines of the script changed", lambda t, a: str(a.lines_changed[t.arm])),
    ("processes that stand by", lambda t, a: str(a.spares[t.arm])),
)


def as_text(found: Sequence[Together], about: About) -> list[RenderableType]:
    """Return the report for the terminal."""
    table = Table(title=about.title, title_justify="left", box=None, pad_edge=False)
    head, *lines = rows(found, about)
    for name in head:
        table.add_column(name, overflow="fold")
    for line in lines:
        table.add_row(*line)
    parts: list[RenderableType] = [table, "", about.machine, about.faults]
    parts += [f"{name}: {text}" for name, text in about.arms.items()]
    parts += [f"{name} was not run: {why}" for name, why in about.left_out.items()]
    parts += [f"{r.arm}, repetition {r.repetition}: {r.ended}" for t in found for r in t.runs if r.ended]
    return parts


def as_markdown(found: Sequence[Together], about: About) -> str:
    """Return the report for a page."""
    head, *lines = rows(found, about)
    text = [f"{about.title}. {about.machine}", "", about.faults, ""]
    text += [_line(head), _line(["---"] * len(head)), *(_line(line) for line in lines), ""]
    text += [f"- *{name}*: {said}" for name, said in about.arms.items()]
    text += [f"- *{name}* was not run: {why}" for name, why in about.left_out.items()]
    text += [f"- *{r.arm}*, repetition {r.repetition}: {r.ended}" for t in found for r in t.runs if r.ended]
    return "\n".join(text) + "\n"


def _line(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


def with_results(page: str, text: str) -> str:
    """Return the page with `text` in its place for results. Raises ValueError if the page has no such place."""
    before, begin, rest = page.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise ValueError(f"there are no lines {BEGIN} and {END}")
    return f"{before}{BEGIN}\n{text}{END}{after}"


def told(result: ArmResult) -> str:
    """Return one line about a run."""
    f = result.figures
    if f is None or result.ended:
        return f"{result.arm} {result.repetition}: {result.ended or 'it did no step'}"
    bits = {None: "", True: ", bitwise equal", False: ", NOT bitwise equal"}[result.is_bitwise]
    return (
        f"{result.arm} {result.repetition}: {f.steps} steps, {f.effective_steps_per_min:.1f} a minute, "
        f"{len(result.struck)} faults cost {f.downtime_s:.2f} s{bits}"
    )
