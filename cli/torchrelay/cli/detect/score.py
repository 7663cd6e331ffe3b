"""What was played against what was said: detected, rightly, and after how long. Pure."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

IGNORE = "ignore"
CLOCK_S = 0.05
"""Agent and controller read the time of day one after the other."""
DOING = ("migrate", "replace", "stop")
SEVERITY = (IGNORE, "watch", *DOING)


@dataclass(frozen=True)
class ScoreRow:
    """One class of faults. `took_s`: from the whole evidence to the verdict; None if there was none, or none was expected."""

    name: str
    expected: str
    got: str
    took_s: float | None
    limit_s: float | None

    @property
    def detected(self) -> bool:
        return self.expected == IGNORE or self.got != IGNORE

    @property
    def right(self) -> bool:
        return self.got == self.expected

    @property
    def in_time(self) -> bool:
        return self.limit_s is None or (self.took_s is not None and self.took_s <= self.limit_s)


def subject_of(episode: Mapping[str, Any], number: int, node: str) -> str:
    """Return the episode's subject as health_verdict names it."""
    subject = str(episode.get("subject", "gpu"))
    named = {
        "gpu": f"GPU-fa4e0000-0000-0000-0000-{number:012d}",
        "port": f"mlx5_{number}/1",
        "node": node,
        "driver": "nvidia-driver",
    }
    return named.get(subject, subject)


def judge(
    episode: Mapping[str, Any],
    number: int,
    played_s: Sequence[float],
    verdicts: Sequence[Mapping[str, Any]],
    until_s: float = math.inf,
) -> ScoreRow:
    """Judge one episode.

    `played_s`: when each of the episode's calls was made; `verdicts`: the job's events health_verdict.
    `until_s`: when the next episode began; what is said from then on is not about this one.
    """
    name = str(episode["class"])
    expected = str(episode["expect"])
    limit_s = None if expected == IGNORE else float(episode["within_s"])
    if not played_s:
        return ScoreRow(name, expected, "not played", None, limit_s)
    mine = [
        v
        for v in verdicts
        if v["subject"] == subject_of(episode, number, str(v["node"]))
        and v["rule"].startswith(str(episode.get("rule", "")))
        and played_s[0] - CLOCK_S <= v["time_s"] < until_s
    ]
    if expected == IGNORE:
        done = [v for v in mine if v["action"] in DOING]
        return ScoreRow(name, expected, done[0]["action"] if done else IGNORE, None, limit_s)
    worst = max(mine, key=lambda v: SEVERITY.index(v["action"]), default=None)
    if worst is None or worst["action"] == IGNORE:
        return ScoreRow(name, expected, IGNORE, None, limit_s)
    first_s = min(v["time_s"] for v in mine if v["action"] == worst["action"])
    # An early call may be evidence enough; the last one before the verdict counts, or the first of all.
    begun_s = max((t for t in played_s if t <= first_s), default=played_s[0])
    return ScoreRow(name, expected, str(worst["action"]), max(first_s - begun_s, 0.0), limit_s)
