"""Draws the diagram and the tables of docs/protocol.md from the transition table; `--check` changes nothing."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from torchrelay.protocol.migration import arrows
from torchrelay.protocol.migration_table import TABLE
from torchrelay.protocol.phases import Deadlines

PAGE = Path(__file__).resolve().parent.parent / "docs" / "protocol.md"
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


def drawn(page: str) -> str:
    """The page with what lies between the marks drawn anew. Raises ValueError if the marks are not there."""
    before, _, rest = page.partition(BEGIN)
    _, mark, after = rest.partition(END)
    if not mark:
        raise ValueError(f"{PAGE} lacks the marks between which the protocol is drawn")
    return "".join((before, BEGIN, "\n", diagram(), "\n", deadlines(), "\n", events(), "\n", END, after))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="change nothing; exit code 1 if the page is stale")
    page = PAGE.read_text(encoding="utf-8")
    if parser.parse_args().check:
        if drawn(page) != page:
            print(f"{PAGE} is stale; run: python scripts/draw_protocol.py", file=sys.stderr)
            return 1
        return 0
    PAGE.write_text(drawn(page), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
