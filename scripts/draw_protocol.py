"""Draws the diagrams and tables of docs from the transition tables of a migration and of a step; `--check` changes nothing."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from pathlib import Path

from torchrelay.controller.migration.machine import arrows
from torchrelay.controller.migration.table import TABLE
from torchrelay.protocol.words.phases import Deadlines
from torchrelay.shim.step.step_state import TRANSITIONS, StepPosition

DOCS = Path(__file__).resolve().parent.parent / "docs"
BEGIN, END = "<!-- drawn by scripts/draw_protocol.py: begin -->\n", "<!-- drawn by scripts/draw_protocol.py: end -->\n"


def diagram() -> str:
    lines = ["```mermaid", "stateDiagram-v2", "    [*] --> HEALTHY"]
    for phase, row in TABLE.items():
        for target, causes in arrows(row).items():
            lines.append(f"    {phase.name} --> {target.name}: {', '.join(causes)}")
    return "\n".join([*lines, "    ABANDONED --> [*]", "```", ""])


def deadlines() -> str:
    lines = ["| phase | deadline | when it passes |", "|---|---|---|"]
    for phase, row in TABLE.items():
        allowed_s = Deadlines().of(phase)
        if allowed_s is not None:
            lines.append(f"| {phase.name} | {allowed_s:g} s | {row.late_means} |")
    return "\n".join([*lines, ""])


def events() -> str:
    lines = ["| phase | is taken note of |", "|---|---|"]
    for phase, row in TABLE.items():
        if row.on:
            lines.append(f"| {phase.name} | {', '.join(sorted(kind.__name__ for kind in row.on))} |")
    return "\n".join([*lines, ""])


def protocol() -> str:
    return "\n".join((diagram(), deadlines(), events()))


def step() -> str:
    lines = ["```mermaid", "stateDiagram-v2", f"    [*] --> {StepPosition.SET_UP.name}"]
    for fact, (allowed, to) in TRANSITIONS.items():
        if allowed != set(StepPosition):
            lines += [f"    {p.name} --> {to.name}: {fact.value}" for p in StepPosition if p in allowed]
    for fact, (allowed, to) in TRANSITIONS.items():
        if allowed == set(StepPosition):
            lines.append(f"    note right of {to.name}: from everywhere, {fact.value}")
    return "\n".join([*lines, "```", ""])


PAGES: dict[Path, Callable[[], str]] = {
    DOCS / "protocol.md": protocol,
    DOCS / "internals" / "boundary-and-gate.md": step,
}


def drawn(page: str, draw: Callable[[], str]) -> str:
    """Return the page with the part between the marks drawn anew. Raises ValueError if the page lacks the marks."""
    before, _, rest = page.partition(BEGIN)
    _, mark, after = rest.partition(END)
    if not mark:
        raise ValueError("the page lacks the marks between which it is drawn")
    return "".join((before, BEGIN, "\n", draw(), "\n", END, after))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="change nothing; exit code 1 if a page is stale")
    is_check, stale = parser.parse_args().check, []
    for path, draw in PAGES.items():
        page = path.read_text(encoding="utf-8")
        if drawn(page, draw) != page:
            stale.append(path)
            if not is_check:
                path.write_text(drawn(page, draw), encoding="utf-8")
    if is_check and stale:
        print(f"stale: {', '.join(map(str, stale))}; run: python scripts/draw_protocol.py", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
