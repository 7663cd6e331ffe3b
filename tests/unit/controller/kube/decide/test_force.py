"""Pods on a node that does not answer."""

from __future__ import annotations

import dataclasses

from torchrelay.controller.kube.decide.force import Stranded, judge_stranded

STRANDED = Stranded("llama-1", "n1", holds_rank=False, unready_s=60.0)


def test_a_pod_that_was_left_behind_is_freed_after_the_grace() -> None:
    assert judge_stranded(STRANDED, 60.0).force
    assert not judge_stranded(dataclasses.replace(STRANDED, unready_s=59.9), 60.0).force


def test_never_one_that_has_a_rank_or_whose_node_answers() -> None:
    assert not judge_stranded(dataclasses.replace(STRANDED, holds_rank=True, unready_s=1e6), 60.0).force
    assert not judge_stranded(dataclasses.replace(STRANDED, unready_s=0.0), 0.0).force
