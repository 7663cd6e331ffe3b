"""The first steps of a static graph. Seen on torch 2.13."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.utils.checkpoint import checkpoint

from torchrelay.protocol.errors import UnsupportedError
from torchrelay.shim.adapters.parallel import ddp_layouts

UNDISTURBED = 6


class Body(torch.nn.Module):
    """One layer is used twice, once computed again in a backward of its own; one gets no gradient."""

    def __init__(self, unused: bool) -> None:
        super().__init__()
        self.last, self.twice, self.first = torch.nn.Linear(16, 1), torch.nn.Linear(16, 16), torch.nn.Linear(8, 16)
        if unused:
            self.unused = torch.nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = torch.tanh(self.first(x))
        x = checkpoint(lambda x: torch.tanh(self.twice(x)), x, use_reentrant=True)
        return self.last(torch.tanh(self.twice(x)))  # type: ignore[no-any-return]  # torch's modules return anything


@pytest.fixture(autouse=True)
def job() -> Iterator[None]:
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


class Rank:
    def __init__(self, unused: bool = False) -> None:
        torch.manual_seed(0)
        self.module = DistributedDataParallel(Body(unused), bucket_cap_mb=0.0003, static_graph=True)
        self.layouts, self.steps = ddp_layouts.Layouts(), 0
        self.layouts.built(self.module)
        self.layouts.note(0)

    def step(self) -> None:
        self.backward()
        self.steps += 1
        self.layouts.note(self.steps)

    def backward(self) -> None:
        self.layouts.forward_begins(self.module)
        self.module(torch.ones(2, 8)).sum().backward()

    def stay(self, target: int) -> None:
        self.layouts.prepare_survivor(target)
        self.layouts.migrated(target)
        self.steps = target
        self.module.zero_grad()

    def enter(self, target: int, text: str) -> None:
        given = ddp_layouts.prepare_joiner(self.layouts.wrappers, text, target)
        self.layouts.adopt(target, given)
        self.steps = target

    def buckets(self) -> Any:
        return self.module._get_ddp_logging_data().get("rebuilt_per_bucket_param_indices")

    def sizes(self) -> Any:
        """Of the buckets that the latest backward has reduced."""
        data = self.module._get_ddp_logging_data()
        return data.get("rebuilt_bucket_sizes") or data["bucket_sizes"]


@pytest.mark.parametrize("unused", [False, True])
def test_the_layout_is_known_after_the_second_backward(unused: bool) -> None:
    rank = Rank(unused)
    texts = []
    for _ in range(UNDISTURBED):
        rank.step()
        texts.append(rank.layouts.as_text(rank.steps))
    ((first, forwards),) = json.loads(texts[0]).values()
    assert (first, forwards) == ([], 1)
    told = [ddp_layouts._indices(bucket) for bucket in rank.buckets().split(",")]
    assert len(told) > 1
    assert [json.loads(text) for text in texts[1:]] == [{"0": [told, 2]}] * (UNDISTURBED - 1)


@pytest.mark.parametrize("target", [0, 1, 2, 3, 5])
@pytest.mark.parametrize("unused", [False, True])
def test_survivor_and_joiner_come_to_the_layouts_of_an_undisturbed_run(target: int, unused: bool) -> None:
    undisturbed = Rank(unused)
    sizes = []
    for _ in range(target + UNDISTURBED):
        undisturbed.step()
        sizes.append(undisturbed.module.reducer._get_zeros_like_grad_buckets())
    survivor, joiner = Rank(unused), Rank(unused)
    for _ in range(target):
        survivor.step()
    survivor.backward()  # interrupted before its update
    text = survivor.layouts.as_text(target)
    survivor.stay(target)
    joiner.enter(target, text)
    for number in range(target, target + UNDISTURBED):
        expected = _shape(sizes[number])
        for rank in (survivor, joiner):
            rank.step()
            assert _shape(rank.module.reducer._get_zeros_like_grad_buckets()) == expected, number


def _shape(buckets: Any) -> list[list[tuple[int, ...]]]:
    return [[tuple(p.shape) for p in bucket.parameters()] for bucket in buckets]


def test_a_second_loss_before_the_layout_has_changed_is_no_other() -> None:
    undisturbed, survivor = Rank(), Rank()
    for _ in range(UNDISTURBED):
        undisturbed.step()
    survivor.step()
    survivor.backward()
    survivor.stay(1)
    survivor.step()
    survivor.backward()
    text = survivor.layouts.as_text(2)
    survivor.stay(2)
    joiner = Rank()
    joiner.enter(2, text)
    for rank in (survivor, joiner):
        rank.step()
        assert json.loads(rank.layouts.as_text(3)) == json.loads(undisturbed.layouts.as_text(UNDISTURBED))
        expected = _shape(undisturbed.module.reducer._get_zeros_like_grad_buckets())
        assert _shape(rank.module.reducer._get_zeros_like_grad_buckets()) == expected


def test_a_move_that_came_to_nothing_after_the_first_backward_changes_nothing() -> None:
    undisturbed, rank = Rank(), Rank()
    rank.step()
    rank.layouts.prepare_survivor(1)
    rank.layouts.abandoned()
    for _ in range(UNDISTURBED):
        undisturbed.step()
    while rank.steps < 3:
        rank.step()
    expected = _shape(undisturbed.module.reducer._get_zeros_like_grad_buckets())
    assert _shape(rank.module.reducer._get_zeros_like_grad_buckets()) == expected


def test_a_joiner_that_nobody_tells_the_layout_is_refused() -> None:
    with pytest.raises(UnsupportedError, match="static_graph"):
        Rank().enter(1, "")
