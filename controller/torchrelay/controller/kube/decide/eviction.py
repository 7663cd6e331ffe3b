"""Is an eviction of the job's pods to be held off, so that `kubectl drain` waits until their ranks have moved?"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class EvictionSituation:
    """`movable`: protected, and its policy lets ranks move. `spares`: there, or to come. `leaving_s`: how long ranks have had to
    leave their nodes and have not; `patience_s`: how long that may take."""

    runs: bool
    movable: bool
    spares: int
    leaving_s: float
    patience_s: float


@dataclass(frozen=True)
class EvictionVerdict:
    hold_off: bool
    reason: str


def judge_eviction(s: EvictionSituation) -> EvictionVerdict:
    """Never for ever: a drain that nothing can come of must not hang."""
    if not s.runs:
        return EvictionVerdict(False, "the job does not run")
    if not s.movable:
        return EvictionVerdict(False, "its ranks cannot be moved")
    if not s.spares:
        return EvictionVerdict(False, "there is no spare for a rank to move to")
    if s.leaving_s > s.patience_s:
        return EvictionVerdict(False, f"ranks have had to leave for {s.leaving_s:.0f} s, and could not")
    return EvictionVerdict(True, "a rank that has to leave is moved first")
