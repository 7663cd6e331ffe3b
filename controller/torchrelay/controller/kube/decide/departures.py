"""Which ranks have to leave their nodes? What people and other controllers do to nodes and pods is read here."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

LEAVING_TAINTS = (
    "ToBeDeletedByClusterAutoscaler",
    "aws-node-termination-handler/spot-itn",
    "cloud.google.com/impending-node-termination",
    "kubernetes.azure.com/scalesetpriority-preempted",
    "karpenter.sh/disrupted",
)
"""Besides any taint that evicts (NoExecute)."""
UNREACHABLE = ("node.kubernetes.io/unreachable", "node.kubernetes.io/not-ready")
"""Of a node that does not answer: that is a loss, which is seen by other means and is no plan."""
BAD_CONDITIONS = ("GpuUnhealthy", "KernelDeadlock", "ReadonlyFilesystem", "FrequentKubeletRestart", "NVSentinel")


@dataclass(frozen=True)
class NodeFacts:
    """`taints`: (key, effect); `conditions`: types that are True; `quarantined`: why, or empty."""

    name: str
    cordoned: bool = False
    taints: tuple[tuple[str, str], ...] = ()
    conditions: tuple[str, ...] = ()
    quarantined: str = ""
    ready: bool = True


@dataclass(frozen=True)
class RankPlace:
    """`pod_leaves`: its pod is being deleted."""

    rank: int
    pod: str
    node: str
    pod_leaves: bool


@dataclass(frozen=True)
class Departure:
    rank: int
    reason: str


def departures(ranks: Sequence[RankPlace], nodes: Sequence[NodeFacts]) -> list[Departure]:
    by_name = {n.name: n for n in nodes}
    found = []
    for place in ranks:
        node = by_name.get(place.node)
        because = f"pod {place.pod} is being deleted" if place.pod_leaves else why_not(node) if node is not None else ""
        if because:
            found.append(Departure(place.rank, because))
    return found


def why_not(node: NodeFacts) -> str:
    """Why nothing of a job should be on the node; empty if nothing speaks against it."""
    if node.quarantined:
        return f"node {node.name} is in quarantine: {node.quarantined}"
    for key, effect in node.taints:
        if key not in UNREACHABLE and (effect == "NoExecute" or key in LEAVING_TAINTS):
            return f"node {node.name} has the taint {key} ({effect})"
    if bad := [c for c in node.conditions if c in BAD_CONDITIONS]:
        return f"node {node.name} has the condition {bad[0]}"
    if node.cordoned:
        return f"node {node.name} is cordoned"
    return ""
