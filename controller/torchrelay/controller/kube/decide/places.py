"""A process has ended in a pod: is one started there again?"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class PodPlace:
    """`restarts`: the kubelet starts an ended container of the pod again. `launched`: a launcher that lives there starts an ended
    process again. `barred`: why nothing should run on its node, or empty."""

    leaves: bool
    is_over: bool
    restarts: bool
    launched: bool
    barred: str = ""


def why_not_again(p: PodPlace) -> str:
    """Empty if one is."""
    if p.leaves:
        return "its pod is being deleted"
    if p.is_over:
        return "its pod has ended"
    if p.barred:
        return f"its node is to be left: {p.barred}"
    if p.restarts or p.launched:
        return ""
    return "its pod does not start containers again (restartPolicy Never)"
