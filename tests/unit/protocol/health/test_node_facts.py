from __future__ import annotations

import pytest

from torchrelay.protocol.health import kinds as k
from torchrelay.protocol.health.classify import classify
from torchrelay.protocol.health.history import History, SeenEvidence
from torchrelay.protocol.health.node_facts import NodeCondition, NodeEvidence, NodeFacts, Notice, Taint
from torchrelay.protocol.health.policy_file import default_policy

POLICY = default_policy()
HEALTHY = NodeFacts(
    taints=(Taint("nvidia.com/gpu", "present"),),
    conditions=(
        NodeCondition("Ready", "True"),
        NodeCondition("DiskPressure", "False"),
        NodeCondition("KernelDeadlock", "Unknown"),
    ),
)


def texts(before: NodeFacts | None, facts: NodeFacts) -> list[tuple[str, float]]:
    evidence = NodeEvidence()
    if before is not None:
        evidence.update(before)
    return [(s.detail, s.value) for s in evidence.update(facts)]


def test_a_healthy_node_shows_its_taint_alone() -> None:
    assert texts(None, HEALTHY) == [("taint nvidia.com/gpu=present:NoSchedule", 1.0)]
    assert texts(HEALTHY, HEALTHY) == []


def test_what_changes_is_told_and_what_is_over_too() -> None:
    evidence = NodeEvidence()
    evidence.update(NodeFacts())
    facts = NodeFacts(conditions=(NodeCondition("Ready", "False", "KubeletNotReady", "PLEG is\n not healthy"),))
    (begun,) = evidence.update(facts)
    assert begun.detail == "condition Ready=False (KubeletNotReady: PLEG is not healthy)"
    assert (begun.kind, begun.device, begun.value) == (k.NODE_CONDITION, "condition:Ready", 1.0)
    (over,) = evidence.update(NodeFacts())
    assert (over.device, over.value, over.detail) == ("condition:Ready", 0.0, begun.detail)


@pytest.mark.parametrize(
    ("facts", "rule"),
    [
        (NodeFacts(cordoned=True), "node-cordon"),
        (NodeFacts(notices=(Notice("eviction", "DisruptionTarget"),)), "node-eviction"),
        (NodeFacts(notices=(Notice("termination", "spot"),)), "node-termination"),
        (NodeFacts(notices=(Notice("notice", "fan"),)), "node-termination"),
        (NodeFacts(notices=(Notice("shutdown", "reboot"),)), "node-shutdown"),
        (NodeFacts(taints=(Taint("ToBeDeletedByClusterAutoscaler", "1700000000"),)), "node-taint-drain"),
        (NodeFacts(taints=(Taint("aws-node-termination-handler/spot-itn", "x"),)), "node-taint-drain"),
        (NodeFacts(taints=(Taint("cloud.google.com/impending-node-termination"),)), "node-taint-drain"),
        (
            NodeFacts(taints=(Taint("node.kubernetes.io/out-of-service", "nodeshutdown", "NoExecute"),)),
            "node-taint-drain",
        ),
        (NodeFacts(taints=(Taint("example.com/away", "yes", "NoExecute"),)), "node-taint-evicts"),
        (NodeFacts(taints=(Taint("node.kubernetes.io/unreachable", "", "NoExecute"),)), "node-not-ready"),
        (NodeFacts(taints=(Taint("example.com/team", "a"),)), ""),
        (NodeFacts(conditions=(NodeCondition("Ready", "Unknown"),)), "node-not-ready"),
        (NodeFacts(conditions=(NodeCondition("PIDPressure", "True"),)), "node-pressure"),
        (NodeFacts(conditions=(NodeCondition("NetworkUnavailable", "True"),)), "node-network"),
        (NodeFacts(conditions=(NodeCondition("ReadonlyFilesystem", "True"),)), "node-problem"),
        (NodeFacts(conditions=(NodeCondition("FrequentContainerdRestart", "True"),)), "node-problem-service"),
        (NodeFacts(conditions=(NodeCondition("GpuNvlinkWatch", "True"),)), "node-sentinel"),
        (NodeFacts(conditions=(NodeCondition("GpuDcgmConnectivityFailure", "True"),)), "node-sentinel-blind"),
        (NodeFacts(conditions=(NodeCondition("EtcdIsVoter", "True"),)), ""),
    ],
)
def test_the_policy_says_what_each_means(facts: NodeFacts, rule: str) -> None:
    evidence = NodeEvidence()
    evidence.update(NodeFacts())
    (signal,) = evidence.update(facts)
    history = History()
    seen = SeenEvidence(signal.kind, 10.0, "n0", signal.device, "", 0, signal.value, signal.detail)
    history.add(seen)
    verdict = classify(history, seen, POLICY, 10.0)
    assert (verdict.rule, verdict.action == k.IGNORE) == (rule, rule == "")


def test_a_taint_that_the_job_was_started_with_evicts_nobody() -> None:
    facts = NodeFacts(taints=(Taint("dedicated", "training", "NoExecute"),))
    (signal,) = NodeEvidence().update(facts)
    history = History()
    seen = SeenEvidence(signal.kind, 10.0, "n0", signal.device, "", 0, signal.value, signal.detail)
    history.add(seen)
    assert classify(history, seen, POLICY, 10.0).action == k.IGNORE
