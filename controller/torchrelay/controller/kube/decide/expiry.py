"""Is a TrainingJob to be removed?"""

from __future__ import annotations

from dataclasses import dataclass

from torchrelay.controller.kube.decide.same_job import ENDED


@dataclass(frozen=True)
class Kept:
    """`ended_s`: how long ago it ended, None if it does not say. `unseen_s`: for how long there has been nothing of it but the
    resource: neither a pod nor anything that this controller knows of it."""

    phase: str
    ended_s: float | None
    unseen_s: float


@dataclass(frozen=True)
class ExpiryVerdict:
    remove: bool
    reason: str


def judge_expiry(job: Kept, ttl_s: float) -> ExpiryVerdict:
    """`ttl_s`: how long one is kept after its end; below 0: for ever."""
    if ttl_s < 0:
        return ExpiryVerdict(False, "ended jobs are kept for ever")
    if job.phase in ENDED and job.ended_s is not None and job.ended_s >= ttl_s:
        return ExpiryVerdict(True, f"it has {job.phase.lower()} {job.ended_s:.0f} s ago, and is kept for {ttl_s:.0f} s")
    if job.unseen_s > 0 and job.unseen_s >= ttl_s:
        return ExpiryVerdict(
            True, f"nothing of it was there for {job.unseen_s:.0f} s, and it is kept for {ttl_s:.0f} s"
        )
    return ExpiryVerdict(False, "its time is not over")
