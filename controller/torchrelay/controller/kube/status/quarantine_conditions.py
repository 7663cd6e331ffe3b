"""Conditions of a Quarantine: whether it holds, and whether its node is free of ranks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import Enum

from torchrelay.controller.kube.cluster.pods import JobKey
from torchrelay.controller.kube.cluster.quarantines import TIME_OVER, Quarantined
from torchrelay.controller.kube.status.conditions import ConditionState

JOBS_NAMED = 8


class QuarantineCondition(str, Enum):
    IN_FORCE = "InForce"
    """Node or device are given no rank."""
    DRAINED = "Drained"
    """It holds, and no rank lives on the node any more. Of a single device this is not known."""


def find_quarantine_conditions(
    quarantined: Quarantined, now_s: float, ranks: Mapping[JobKey, Sequence[int]]
) -> dict[QuarantineCondition, ConditionState]:
    """Say which conditions hold. `now_s`: seconds since the epoch. `ranks`: that live on its node. Pure."""
    if not quarantined.holds(now_s):
        reason = "Cleared" if quarantined.cleared else "TimeOver"
        in_force = ConditionState(False, reason, quarantined.cleared or TIME_OVER)
        drained = ConditionState(False, "NotInForce", "it does not hold, so ranks may come there")
    else:
        what = f"device {quarantined.device}" if quarantined.device else f"node {quarantined.node}"
        in_force = ConditionState(True, "Holds", f"{what} is given no rank")
        drained = _drained(ranks)
    found = {QuarantineCondition.IN_FORCE: in_force}
    return found if quarantined.device else {**found, QuarantineCondition.DRAINED: drained}


def _drained(ranks: Mapping[JobKey, Sequence[int]]) -> ConditionState:
    if not ranks:
        return ConditionState(True, "NoRanks", "no rank lives there")
    told = [f"{key}: {len(held)} of its ranks" for key, held in sorted(ranks.items())]
    more = f"; and {len(told) - JOBS_NAMED} jobs more" if len(told) > JOBS_NAMED else ""
    return ConditionState(False, "RanksThere", "; ".join(told[:JOBS_NAMED]) + more)
