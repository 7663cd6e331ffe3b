"""Which ranks have to leave their nodes."""

from __future__ import annotations

import dataclasses

import pytest

from torchrelay.controller.kube.decide.departures import NodeFacts, RankPlace, departures

GOOD = NodeFacts("n1")
PLACE = RankPlace(1, "train-1", "n1", pod_leaves=False)


def test_nobody_leaves_a_good_node() -> None:
    assert departures([PLACE], [GOOD]) == []


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"cordoned": True}, "node n1 is cordoned"),
        ({"taints": (("maintenance", "NoExecute"),)}, "taint maintenance"),
        ({"taints": (("aws-node-termination-handler/spot-itn", "NoSchedule"),)}, "spot-itn"),
        ({"conditions": ("Ready", "GpuUnhealthy")}, "condition GpuUnhealthy"),
        ({"quarantined": "Xid 79"}, "in quarantine: Xid 79"),
    ],
)
def test_a_rank_leaves_a_node_with_the_reason(change: dict[str, object], reason: str) -> None:
    (found,) = departures([PLACE], [dataclasses.replace(GOOD, **change)])  # type: ignore[arg-type]
    assert found.rank == 1
    assert reason in found.reason


@pytest.mark.parametrize("key", ["node.kubernetes.io/unreachable", "node.kubernetes.io/not-ready"])
def test_a_node_that_does_not_answer_is_no_plan(key: str) -> None:
    assert departures([PLACE], [dataclasses.replace(GOOD, taints=((key, "NoExecute"),), ready=False)]) == []


def test_a_taint_that_only_keeps_others_away_moves_nobody() -> None:
    assert departures([PLACE], [dataclasses.replace(GOOD, taints=(("gpu", "NoSchedule"),))]) == []


def test_a_rank_whose_pod_is_being_deleted_leaves_whatever_its_node_is() -> None:
    (found,) = departures([dataclasses.replace(PLACE, pod_leaves=True)], [])
    assert "pod train-1 is being deleted" in found.reason


def test_only_the_ranks_of_that_node_leave() -> None:
    other = RankPlace(0, "train-0", "n2", pod_leaves=False)
    found = departures([other, PLACE], [GOOD, NodeFacts("n2", cordoned=True)])
    assert [d.rank for d in found] == [0]
