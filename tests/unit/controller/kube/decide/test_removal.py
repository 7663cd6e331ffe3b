"""A job that somebody deletes does not go on in its spares."""

from __future__ import annotations

from torchrelay.controller.kube.decide.removal import TOGETHER_S, Deleted, judge_removal

NOW_S = 100.0


def test_all_pods_at_once_are_the_job() -> None:
    verdict = judge_removal(2, {0: Deleted(NOW_S, False), 1: Deleted(NOW_S - 3.0, False)}, NOW_S)
    assert verdict.removed
    assert "all 2 ranks" in verdict.reason


def test_one_pod_of_two_is_a_leaver() -> None:
    assert not judge_removal(2, {1: Deleted(NOW_S, False)}, NOW_S).removed


def test_one_after_the_other_are_leavers() -> None:
    assert not judge_removal(2, {0: Deleted(NOW_S - TOGETHER_S - 1.0, False), 1: Deleted(NOW_S, False)}, NOW_S).removed


def test_a_node_that_is_drained_takes_no_job_with_it() -> None:
    assert not judge_removal(2, {0: Deleted(NOW_S, True), 1: Deleted(NOW_S, True)}, NOW_S).removed


def test_the_only_pod_of_a_job_of_one_is_the_job() -> None:
    assert judge_removal(1, {0: Deleted(NOW_S, False)}, NOW_S).removed
