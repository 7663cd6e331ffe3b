"""Where should a spare be? Said to the scheduler as preferences: a spare in a bad place is better than none."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from torchrelay.protocol.kube import kube_names as kube

HOST = "kubernetes.io/hostname"
DEFAULT_TOPOLOGY = (
    "nvidia.com/gpu.product",
    "nvidia.com/gpu.clique",
    "topology.kubernetes.io/rack",
    "topology.kubernetes.io/zone",
)
"""The most important first: a rank on another GPU model computes other bits."""
MOST = 100


def placement(
    job: str, labels: Mapping[str, str], barred: Sequence[str], keys: Sequence[str] = ()
) -> tuple[list[dict[str, Any]], list[str]]:
    """Affinity terms for `clone.spare_pod`, and each one's reason.

    `labels`: of the node of the worker that is copied; `barred`: nodes in quarantine; `keys`: topology labels by weight.
    """
    apart = {
        "weight": MOST,
        "podAffinityTerm": {"topologyKey": HOST, "labelSelector": {"matchLabels": {kube.JOB: job}}},
    }
    terms: list[dict[str, Any]] = [{"apart": apart}]
    reasons = ["on a node without another pod of the job, so that one loss does not take both"]
    known = [key for key in (keys or DEFAULT_TOPOLOGY) if key in labels]
    for place, key in enumerate(known):
        weight = MOST * (len(known) - place) // len(known)
        terms.append(_node(weight, key, "In", [labels[key]]))
        reasons.append(f"where {key} is {labels[key]}, as on the nodes of the ranks")
    if barred:
        terms.append({"never": {"key": HOST, "operator": "NotIn", "values": sorted(barred)}})
        reasons.append(f"not on {', '.join(sorted(barred))}, in quarantine")
    return terms, reasons


def _node(weight: int, key: str, operator: str, values: list[str]) -> dict[str, Any]:
    expression = {"key": key, "operator": operator, "values": values}
    return {"node": {"weight": weight, "preference": {"matchExpressions": [expression]}}}
