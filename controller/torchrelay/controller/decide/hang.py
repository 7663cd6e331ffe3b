"""Does the job stand still, and because of whom?

Peers that wait prove nothing by themselves: a rank may evaluate or save for minutes. The culprit is who does not wait
while others do, and shows no life: no step of its loop, no processor time.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from torchrelay.controller.config import Policy

_NOT_TRAINING = ("set-up", "standing", "finished")
_SLACK = ("data", "after")
_STOPPED = "T"


@dataclass(frozen=True)
class Vital:
    """What is known of one rank.

    `silent_s`: since its progress last moved; `idle_s`: since it was last seen computing or at the disk; `news_age_s`:
    since its agent last said anything of it; `stopped_s`: how long it has been in state T.
    """

    rank: int
    boundary: int
    gates_passed: int
    phase: str
    waiting: bool
    process_state: str
    silent_s: float
    idle_s: float
    news_age_s: float
    stopped_s: float = 0.0


@dataclass(frozen=True)
class Culprit:
    rank: int
    silent_s: float
    reason: str
    evidence: str


def find_culprit(vitals: Sequence[Vital], median_step_s: float, policy: Policy) -> Culprit | None:
    """The one rank to blame, or None as long as nobody must be."""
    current = [v for v in vitals if v.news_age_s <= policy.stale_progress_s]
    threshold_s = policy.hang_step_factor * median_step_s + policy.hang_extra_s
    waiting = [v for v in current if v.waiting and v.process_state != _STOPPED and v.phase not in _NOT_TRAINING]
    stopped = [
        v
        for v in current
        if v.process_state == _STOPPED and v.stopped_s >= policy.stopped_s and v.phase not in ("set-up", "finished")
    ]
    done = [v for v in current if v.phase == "finished"]
    if stopped and (waiting or done):
        v = _furthest_behind(stopped)
        reason = f"rank {v.rank} has been stopped (state T) for {v.stopped_s:.1f} s while {_ranks(waiting or done)}"
        return Culprit(v.rank, v.stopped_s, reason, _evidence(vitals))
    long_waiting = [v for v in waiting if v.silent_s >= threshold_s]
    silent = [
        v
        for v in current
        if not v.waiting
        and v.process_state != _STOPPED
        and v.phase not in _NOT_TRAINING
        and v.silent_s >= _limit_s(v, threshold_s, policy)
        and (v.idle_s >= threshold_s or v.silent_s >= policy.busy_hang_s)
    ]
    if not silent or not long_waiting:
        return None
    v = _furthest_behind(silent)
    reason = (
        f"rank {v.rank} has shown no progress for {v.silent_s:.1f} s (a step takes {median_step_s:.2f} s, "
        f"the limit is {_limit_s(v, threshold_s, policy):.1f} s) while {_ranks(long_waiting)}"
    )
    return Culprit(v.rank, v.silent_s, reason, _evidence(vitals))


def _limit_s(v: Vital, threshold_s: float, policy: Policy) -> float:
    # Storage and evaluation have bad moments that no step time foretells.
    return max(threshold_s, policy.slack_hang_s) if v.phase in _SLACK else threshold_s


def _furthest_behind(candidates: Sequence[Vital]) -> Vital:
    return min(candidates, key=lambda v: (v.boundary, v.gates_passed, -v.silent_s, v.rank))


def _ranks(waiting: Sequence[Vital]) -> str:
    listed = ", ".join(str(v.rank) for v in waiting)
    return f"rank {listed} waits" if len(waiting) == 1 else f"ranks {listed} wait"


def _evidence(vitals: Sequence[Vital]) -> str:
    return "; ".join(
        f"rank {v.rank}: boundary {v.boundary}, {v.phase}{', waiting' if v.waiting else ''}, state {v.process_state}, "
        f"silent for {v.silent_s:.1f} s"
        for v in vitals
    )
