"""Whether a process that has ended in a pod is started there again."""

from __future__ import annotations

import dataclasses

import pytest

from torchrelay.controller.kube.decide.places import PodPlace, why_not_again

WELL = PodPlace(leaves=False, is_over=False, restarts=True, launched=False)


def test_the_kubelet_or_a_launcher_does_so() -> None:
    assert why_not_again(WELL) == ""
    assert why_not_again(dataclasses.replace(WELL, restarts=False, launched=True)) == ""


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"restarts": False}, "restartPolicy Never"),
        ({"leaves": True}, "is being deleted"),
        ({"is_over": True}, "has ended"),
        ({"barred": "cordon of node n1"}, "its node is to be left: cordon of node n1"),
    ],
)
def test_why_not_is_said(changes: dict[str, object], reason: str) -> None:
    assert reason in why_not_again(dataclasses.replace(WELL, **changes))  # type: ignore[arg-type]  # of any of its fields
