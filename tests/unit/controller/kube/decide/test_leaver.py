"""What becomes of a pod whose rank lives elsewhere."""

from __future__ import annotations

import pytest

from torchrelay.controller.kube.decide.leaver import DELETE, KEEP, RELEASE, Leaver, judge_leaver


@pytest.mark.parametrize(
    ("planned", "restarts", "leaves", "action"),
    [
        (True, False, False, DELETE),
        (True, True, False, DELETE),
        (False, True, False, KEEP),
        (False, False, False, RELEASE),
        (True, True, True, RELEASE),
        (False, True, True, RELEASE),
    ],
)
def test_the_pod_of_a_leaver_is_deleted_released_or_kept(
    planned: bool, restarts: bool, leaves: bool, action: str
) -> None:
    verdict = judge_leaver(Leaver("train-1", 1, planned, restarts, leaves))
    assert verdict.action == action
    assert "train-1" in verdict.reason


@pytest.mark.parametrize("leaves", [False, True])
def test_a_pod_in_which_another_rank_lives_is_kept(leaves: bool) -> None:
    verdict = judge_leaver(Leaver("train-1", 1, True, True, leaves, (0, 2)))
    assert (verdict.action, verdict.reason) == (KEEP, "pod train-1, which had rank 1, has ranks 0, 2 too")
