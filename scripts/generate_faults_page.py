"""Writes the tables of docs/faults.md from the default health policy; `--check` only says whether they are up to date."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from torchrelay.protocol.health.policy import Rule
from torchrelay.protocol.health.policy_file import default_policy

PAGE = Path(__file__).resolve().parent.parent / "docs" / "faults.md"
BEGIN, END = "<!-- policy: begin (scripts/generate_faults_page.py) -->\n", "<!-- policy: end -->"


def condition(rule: Rule) -> str:
    """When the row applies, in a few words."""
    words = [rule.signal] if not rule.codes else [f"{rule.signal} {', '.join(map(str, rule.codes))}"]
    if rule.bits:
        words.append("; ".join(f"register {n} bits {', '.join(map(str, bits))}" for n, bits in rule.bits.items()))
    if rule.match:
        words.append("the line says so")
    if rule.at_least is not None:
        words.append(f"at least {rule.at_least:g}")
    if rule.at_most is not None:
        words.append(f"at most {rule.at_most:g}")
    if rule.for_s:
        words.append(f"for {rule.for_s:g} s")
    if rule.sum_over is not None:
        words.append(f"more than {rule.sum_over:g}")
    if rule.times > 1:
        words.append(f"{rule.times} times")
    if rule.devices > 1:
        words.append(f"on {rule.devices} devices")
    if rule.within_s:
        words.append(f"within {rule.within_s:g} s")
    return ", ".join(words)


def tables() -> str:
    lines = ["| row | evidence | verdict | quarantine | why | source |", "|---|---|---|---|---|---|"]
    for rule in default_policy().rules:
        contested = f" (contested: {rule.contested})" if rule.contested else ""
        cells = (
            f"`{rule.name}`",
            condition(rule),
            f"`{rule.verdict}`",
            rule.quarantine,
            rule.why + contested,
            rule.source,
        )
        lines.append("| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |")
    return "\n".join(lines) + "\n"


def page() -> str:
    text = PAGE.read_text("utf-8")
    before, _, rest = text.partition(BEGIN)
    _, _, after = rest.partition(END)
    return before + BEGIN + tables() + END + after


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="change nothing; exit code 1 if the page is stale")
    if not parser.parse_args().check:
        PAGE.write_text(page(), "utf-8")
        return 0
    if page() != PAGE.read_text("utf-8"):
        print(f"{PAGE} is stale; run: python scripts/generate_faults_page.py", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
