"""Who of several controllers leads? By a Lease: whoever has it renews it, and who sees it unrenewed for long enough takes it."""

from __future__ import annotations

from dataclasses import dataclass

LEASE_S = 15.0
RENEW_S = 3.0
LEAD = "lead"
TAKE = "take"
FOLLOW = "follow"
STEP_DOWN = "step-down"


@dataclass(frozen=True)
class SeenLease:
    """`holder` of the lease, empty if nobody has it. `unchanged_s`: how long it has been seen without a renewal, by the own
    clock: the clocks of others may be wrong. `leads`: whether this one has led so far.
    """

    me: str
    holder: str
    unchanged_s: float
    leads: bool


@dataclass(frozen=True)
class LeadershipVerdict:
    action: str
    reason: str


def judge_lease(seen: SeenLease) -> LeadershipVerdict:
    if seen.holder == seen.me:
        return LeadershipVerdict(LEAD, "this one has the lease")
    if seen.leads:
        return LeadershipVerdict(STEP_DOWN, f"{seen.holder or 'nobody'} has the lease by now")
    if not seen.holder:
        return LeadershipVerdict(TAKE, "nobody has the lease")
    if seen.unchanged_s >= LEASE_S:
        return LeadershipVerdict(TAKE, f"{seen.holder} has not renewed it for {seen.unchanged_s:.0f} s")
    return LeadershipVerdict(FOLLOW, f"{seen.holder} leads")
