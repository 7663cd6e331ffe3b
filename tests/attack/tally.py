"""What was tried, and what became of it."""

from __future__ import annotations

import re
from collections import Counter

_LONGEST = 90


class Tally:
    def __init__(self) -> None:
        self.tried: Counter[str] = Counter()
        self.refused: Counter[tuple[str, str]] = Counter()
        self.wrong: list[str] = []
        """Why the whole is no pass."""

    def sent(self, kind: str, count: int = 1) -> None:
        self.tried[kind] += count

    def refuse(self, kind: str, reason: str, count: int = 1) -> None:
        """Numbers, addresses and names that differ from case to case do not count."""
        plain = re.sub(r"\d[\d.:]*", "N", " ".join(reason.split()))[:_LONGEST]
        self.refused[kind, plain] += count

    def fail(self, reason: str) -> None:
        self.wrong.append(reason)

    def told(self) -> str:
        lines = []
        for kind, count in sorted(self.tried.items()):
            lines.append(f"{kind}: {count}")
            reasons = [(c, why) for (of, why), c in self.refused.items() if of == kind]
            lines += [f"    {c} refused: {why}" for c, why in sorted(reasons, reverse=True)]
        return "\n".join([*lines, *(f"WRONG: {reason}" for reason in self.wrong)])
