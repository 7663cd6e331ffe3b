from __future__ import annotations

import sys

import pytest
import torch

from torchrelay.shim.adapters.tensors import graph_order


def test_a_graph_is_as_old_as_what_it_was_begun_with() -> None:
    weight = torch.ones(2, requires_grad=True)
    first = graph_order.now()
    hidden = weight * 2
    second = graph_order.now()
    loss = (hidden + 1).sum()
    assert first < second < graph_order.now()
    assert first <= graph_order.oldest(loss) < second
    assert graph_order.oldest([(weight * 3).sum(), (weight * 4).sum()]) >= second


@pytest.mark.parametrize("tensors", [[], torch.ones(1), [torch.ones(1, requires_grad=True)]])
def test_what_has_no_graph_is_as_if_it_was_recorded_just_now(tensors: torch.Tensor | list[torch.Tensor]) -> None:
    assert graph_order.oldest(tensors) == sys.maxsize


def test_a_long_graph_is_followed_for_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(graph_order, "_MOST_NODES", 3)
    value = torch.ones(1, requires_grad=True)
    for _ in range(10):
        place = graph_order.now()
        value = value * 2
    assert place - 2 <= graph_order.oldest(value) <= place


def test_where_torch_does_not_tell_all_graphs_are_new(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(graph_order, "_now", None)
    assert graph_order.now() == 0 <= graph_order.oldest(torch.ones(1, requires_grad=True) * 2)
