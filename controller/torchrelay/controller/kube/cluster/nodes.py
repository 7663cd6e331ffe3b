"""Reads nodes, and what a pod says of its node, and applies the health policy to it. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from torchrelay.controller.kube.cluster.pods import Pod
from torchrelay.protocol.health import kinds as k
from torchrelay.protocol.health.classify import classify
from torchrelay.protocol.health.history import History, SeenEvidence
from torchrelay.protocol.health.node_facts import NodeCondition, NodeEvidence, NodeFacts, Notice, Taint
from torchrelay.protocol.health.policy import HealthPolicy

_CORDON = "node.kubernetes.io/unschedulable"
"""The taint of a cordon, which spec.unschedulable says too."""
_DISRUPTED = "DisruptionTarget"


def read_node(
    manifest: dict[str, Any], notices: tuple[Notice, ...] = (), ended: Mapping[str, str] = MappingProxyType({})
) -> NodeFacts:
    """Return the facts of a node. `notices`: what else is said of it. `ended`: how earlier notices came to their end."""
    spec = manifest.get("spec") or {}
    status = manifest.get("status") or {}
    return NodeFacts(
        bool(spec.get("unschedulable")),
        tuple(
            Taint(t["key"], t.get("value") or "", t.get("effect") or "NoSchedule")
            for t in spec.get("taints") or ()
            if t["key"] != _CORDON
        ),
        tuple(map(_condition, status.get("conditions") or ())),
        notices,
        manifest["metadata"]["name"],
        ended,
    )


def slim(manifest: dict[str, Any]) -> dict[str, Any]:
    """Return the parts of a node that are looked at. The list of its images alone is larger than all the rest."""
    meta = manifest["metadata"]
    status = manifest.get("status") or {}
    return {
        "metadata": {"name": meta["name"], "labels": meta.get("labels") or {}},
        "spec": manifest.get("spec") or {},
        "status": {"conditions": status.get("conditions") or []},
    }


def is_ready(manifest: dict[str, Any]) -> bool:
    conditions = (manifest.get("status") or {}).get("conditions") or ()
    return any(c["type"] == "Ready" and c.get("status") == "True" for c in conditions)


def pod_notices(pod: Pod) -> tuple[Notice, ...]:
    """Return a notice if the pod itself has to go, wherever its node is going."""
    if pod.leaves:
        return (Notice("eviction", f"pod {pod.name} is being deleted"),)
    for c in pod.conditions:
        if c.type == _DISRUPTED and c.status == "True":
            return (Notice("eviction", f"pod {pod.name}: {c.reason}: {' '.join(c.message.split())}"),)
    return ()


def _condition(c: dict[str, Any]) -> NodeCondition:
    return NodeCondition(c["type"], c.get("status") or "", c.get("reason") or "", c.get("message") or "")


class NodeBook:
    """What is known of each node, for pods in which nothing runs yet."""

    def __init__(self) -> None:
        self._evidence: dict[str, NodeEvidence] = {}
        self._history: dict[str, History] = {}

    def note(self, facts: NodeFacts, now_s: float) -> None:
        history = self._history.setdefault(facts.name, History())
        for s in self._evidence.setdefault(facts.name, NodeEvidence()).update(facts):
            history.add(SeenEvidence(s.kind, now_s, facts.name, s.device, value=s.value, detail=s.detail))

    def forget(self, node: str) -> None:
        self._evidence.pop(node, None)
        self._history.pop(node, None)

    def why_leave(self, node: str, policy: HealthPolicy, now_s: float) -> str:
        """Return the reason of the verdict that nothing is to stay on the node.

        Empty where there is none, or it is to be observed only.
        """
        if (history := self._history.get(node)) is None:
            return ""
        for newest in history.levels():
            verdict = classify(history, newest, policy, now_s)
            if verdict.quarantine == k.NODE and verdict.action in (k.MIGRATE, k.REPLACE) and not verdict.observe:
                return verdict.reason
        return ""
