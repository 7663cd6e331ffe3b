"""A job is started anew, and a machine is missing: is it waited for, or does the job go on without it? Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum


class WaitAnswer(Enum):
    BEGIN = "begin"
    WAIT = "wait"
    BEGIN_WITHOUT = "begin-without"
    END = "end"


@dataclass(frozen=True)
class MissingMachines:
    """`missing`: node ranks. `waited_s`, of `limit_s` (0: without end). `lacking`: ranks for which no process is there; `places`:
    for how many of them the machines that are there have a place. `barred`: why none may be there, whatever the places.
    """

    missing: Sequence[int]
    waited_s: float
    limit_s: float
    lacking: int
    places: int
    barred: str = ""


@dataclass(frozen=True)
class WaitVerdict:
    """`now`: as `reason`, with what is left of the wait."""

    answer: WaitAnswer
    reason: str = ""
    now: str = ""


def judge_wait(m: MissingMachines) -> WaitVerdict:
    """At the limit, not before: a machine that comes back makes the job as fast as it was."""
    if not m.missing:
        return WaitVerdict(WaitAnswer.BEGIN)
    plural = "s" * (len(m.missing) > 1)
    who = f"machine{plural} {', '.join(map(str, sorted(m.missing)))}"
    without = _why_not_without(m)
    if not m.limit_s or m.waited_s < m.limit_s:
        endless = "without end (--machine-wait 0)"
        limit = f"for up to {m.limit_s:.0f} s (--machine-wait)" if m.limit_s else endless
        left = f"for {m.limit_s - m.waited_s:.0f} s more (--machine-wait)" if m.limit_s else endless
        then = f"the job cannot go on without, and ends: {without}" if without else "then the job goes on without"
        then = f"; {then}" if m.limit_s or without else ""
        waits = f"the job is started anew, and waits for {who}, "
        return WaitVerdict(WaitAnswer.WAIT, f"{waits}{limit}{then}", f"{waits}{left}{then}")
    waited = f"{who} did not come back within {m.limit_s:.0f} s (--machine-wait)"
    if without:
        return WaitVerdict(WaitAnswer.END, f"{waited}, and the job cannot go on without: {without}")
    how = f", with processes for {m.lacking} of its ranks on the machines that are there" if m.lacking else ""
    return WaitVerdict(WaitAnswer.BEGIN_WITHOUT, f"{waited}: the job goes on without{how}")


def _why_not_without(m: MissingMachines) -> str:
    if m.barred:
        return m.barred
    if m.places < m.lacking:
        return f"the machines that are there have places for {m.places} of {m.lacking} further ranks"
    return ""
