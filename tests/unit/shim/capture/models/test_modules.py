from __future__ import annotations

import torch
from support.host_state import take
from torch import nn

from torchrelay.shim.capture.models.modules import ModuleTrees
from torchrelay.shim.capture.walks.rewalk import Rewalk


def model() -> torch.nn.Sequential:
    return torch.nn.Sequential(torch.nn.BatchNorm1d(2), torch.nn.Linear(2, 2))


def test_a_tree_is_kept_until_something_is_born_in_it() -> None:
    trees, root = ModuleTrees(), model()
    tree = trees.tree(root)
    assert trees.tree(root) is tree
    root[1].note = 1  # type: ignore[assignment]  # torch declares tensors and modules alone
    assert trees.tree(root) is not tree
    tree = trees.tree(root)
    root[1].add_module("child", torch.nn.ReLU())
    assert trees.tree(root) is not tree


def test_an_address_that_was_used_before_is_not_taken_for_the_old_module() -> None:
    trees = ModuleTrees()
    first, second = model(), model()
    trees._trees[id(second)] = trees.tree(first)
    assert trees.tree(second).root is second


def test_buffers_that_training_writes_to_are_told_from_those_that_stay() -> None:
    trees, root = ModuleTrees(), model()
    root.register_buffer("mask", torch.ones(2))
    tree = trees.tree(root)
    tree.take()
    assert tree.changing == set()
    root(torch.randn(4, 2))
    tree.take()
    assert tree.changing == {"0.running_mean", "0.running_var", "0.num_batches_tracked"}


def test_large_buffers_and_parameters_are_not_copied() -> None:
    root = model()
    root.register_buffer("cache", torch.zeros(100_000))
    tree = ModuleTrees().tree(root)
    assert "cache" not in tree.take().buffers
    assert [name for name, _ in tree.large] == ["cache", "0.weight", "0.bias", "1.weight", "1.bias"]


def test_only_rebound_attributes_differ_from_the_set_up() -> None:
    root = model()
    root[1].calls, root[1].name = 1, "a"  # type: ignore[assignment]  # torch declares tensors and modules alone
    tree = ModuleTrees().tree(root)
    base = tree.take()
    root[1].calls = 2  # type: ignore[assignment]  # torch declares tensors and modules alone
    changed = tree.take().changed(base)
    assert [tree.slots[place] for place in changed] == [("1", "calls")]
    assert len(base.changed(None)) == len(tree.slots)


def test_a_flag_that_another_look_has_found_first_is_no_news_that_is_missed() -> None:
    root = torch.nn.Sequential(torch.nn.Linear(2, 2))
    root[0].weight.requires_grad = False
    tree = ModuleTrees().tree(root)
    tree.is_current()
    at_head = tree.take()
    assert tree.is_still(at_head)
    root[0].weight.requires_grad = True
    tree.is_current()
    at_gate = tree.take()
    assert tree.is_still(at_gate)
    assert not tree.is_still(at_head)


class Spread(torch.Tensor):
    """As DTensors are: a tensor of a class of its own."""


def test_a_walk_goes_on_where_an_optimizer_keeps_tensors_of_another_class() -> None:
    model = nn.Linear(2, 2)
    optimizer = torch.optim.AdamW(model.parameters())
    for parameter in model.parameters():
        optimizer.state[parameter]["exp_avg"] = torch.zeros_like(parameter).detach().as_subclass(Spread)
    namespace, trees = {"model": model, "optimizer": optimizer}, ModuleTrees()
    state = take(namespace, trees)
    for at_gate in (True, False):
        later = Rewalk(trees, state, at_gate=at_gate).run([], {"script": namespace})
        assert not later.renewed
