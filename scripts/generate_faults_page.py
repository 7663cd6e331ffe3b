"""Writes the tables of docs/faults.md from the default health policy; `--check` only says whether they are up to date."""

from __future__ import annotations

import sys

from generated_part import GeneratedPart

from torchrelay.protocol.health.policy import Rule
from torchrelay.protocol.health.policy_file import default_policy


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


PART = GeneratedPart("docs/faults.md", "policy", "generate_faults_page.py", tables)


if __name__ == "__main__":
    sys.exit(PART.main(__doc__))
