"""Plans of checkpoints that are kept from one save to the next."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from support.failing_guard import FAILING
from torch.distributed.checkpoint import DefaultSavePlanner
from torch.distributed.checkpoint.planner import SavePlanner

from torchrelay.shim.adapters.checkpoints import save_plans


@pytest.fixture
def era(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What the adapter is told; in another class than torch's own, which the tests leave alone."""
    for kept in save_plans._KEPT:
        monkeypatch.setattr(SavePlanner, kept, {})
    monkeypatch.setattr(DefaultSavePlanner, "set_up_planner", DefaultSavePlanner.set_up_planner)
    said = ["0"]
    save_plans.install(SimpleNamespace(DefaultSavePlanner=DefaultSavePlanner), lambda: said[0], FAILING)  # type: ignore[arg-type]  # a stand-in
    return said


def plan(*, cached: bool = True) -> Any:
    """What a rank that saves alone sends to whoever coordinates."""
    planner = DefaultSavePlanner(enable_plan_caching=cached)
    planner.set_up_planner({"x": torch.ones(3)}, is_coordinator=True)
    sent = planner.create_local_plan()
    (finished,), _ = planner.create_global_plan([sent])
    planner.finish_plan(finished)
    return sent


def test_a_rank_sends_its_plan_again_where_another_one_may_have_kept_none(era: list[str]) -> None:
    said = era
    assert [plan().usable, plan().usable] == [True, False]
    said[0] = "1"
    assert [plan().usable, plan().usable] == [True, False]


def test_what_was_kept_before_is_forgotten(era: list[str]) -> None:
    said = era
    plan()
    said[0] = "1"
    plan()
    assert [list(getattr(SavePlanner, kept)) for kept in save_plans._KEPT] == [["DefaultSavePlanner@1"]] * 5


def test_who_keeps_nothing_is_left_as_it_is(era: list[str]) -> None:
    assert [plan(cached=False).usable, plan(cached=False).usable] == [True, True]
    assert not any(getattr(SavePlanner, kept) for kept in save_plans._KEPT)
