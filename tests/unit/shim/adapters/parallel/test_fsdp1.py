"""Wrappers of the first FSDP are put to idle. Seen on torch 2.13."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
import torch.distributed as dist
from torch.distributed.fsdp import FullyShardedDataParallel, ShardingStrategy
from torch.distributed.fsdp.wrap import ModuleWrapPolicy
from torch.testing._internal.distributed.fake_pg import FakeStore

from torchrelay.shim.adapters.parallel import fsdp1

pytestmark = pytest.mark.filterwarnings("ignore:The `NO_SHARD` sharding strategy is deprecated:FutureWarning")


class Block(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = torch.nn.Linear(4, 4)
        self.raises = False

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y: torch.Tensor = self.inner(x)
        if self.raises:
            raise Interrupted
        return y


class Interrupted(Exception):
    pass


def raise_it(_: torch.Tensor) -> None:
    raise Interrupted


@pytest.fixture(params=[(True, "FULL_SHARD"), (False, "FULL_SHARD"), (True, "SHARD_GRAD_OP"), (True, "NO_SHARD")])
def model(request: pytest.FixtureRequest) -> Iterator[torch.nn.Module]:
    named, strategy = request.param
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=2)
    torch.manual_seed(0)
    yield FullyShardedDataParallel(
        torch.nn.Sequential(torch.nn.Linear(4, 4), Block(), Block()),
        auto_wrap_policy=ModuleWrapPolicy({Block}),
        use_orig_params=named,
        sharding_strategy=ShardingStrategy[strategy],
        device_id=torch.device("cpu"),
    )
    dist.destroy_process_group()


def contents(model: torch.nn.Module) -> list[list[float]]:
    return [p.detach().flatten().tolist() for p in model.parameters()]


def shapes(model: torch.nn.Module) -> list[torch.Size]:
    return [p.shape for p in model.parameters()]


def interrupt(model: torch.nn.Module, *, in_backward: bool) -> None:
    block = [m for m in model.modules() if isinstance(m, Block)][-1]
    x = torch.ones(2, 4, requires_grad=True)
    if in_backward:
        hooked = block.inner.register_forward_hook(lambda _, __, y: y.register_hook(raise_it) and None)
        with pytest.raises(Interrupted):
            model(x).sum().backward()
        hooked.remove()
    else:
        block.raises = True
        with pytest.raises(Interrupted):
            model(x)
        block.raises = False


@pytest.mark.parametrize("in_backward", [False, True])
@pytest.mark.parametrize("before", [0, 2])
def test_an_interrupted_step_leaves_shards_and_the_next_one_runs(
    model: torch.nn.Module, before: int, in_backward: bool
) -> None:
    for _ in range(before):
        model(torch.ones(2, 4)).sum().backward()
        model.zero_grad()
    were, forms = contents(model), shapes(model)
    interrupt(model, in_backward=in_backward)
    fsdp1.reset(model.modules())
    model.zero_grad()
    if before:  # before its first step no wrapper has shards yet that it could go back to
        assert (contents(model), shapes(model)) == (were, forms)
    model(torch.ones(2, 4)).sum().backward()
    assert shapes(model) == forms


def test_wrappers_between_two_steps_keep_reduced_gradients(model: torch.nn.Module) -> None:
    model(torch.ones(2, 4)).sum().backward()
    gradients = [p.grad for p in model.parameters()]
    fsdp1.reset(model.modules())
    assert all(p.grad is g for p, g in zip(model.parameters(), gradients))


def test_a_torch_that_lacks_something_is_named(model: torch.nn.Module, monkeypatch: pytest.MonkeyPatch) -> None:
    assert fsdp1.limits([model]) == []
    monkeypatch.setattr(fsdp1, "_NEEDED", (*fsdp1._NEEDED, "_not_there"))
    assert "_not_there" in fsdp1.limits([model])[0]


def test_other_modules_are_left_alone() -> None:
    fsdp1.reset([torch.nn.Linear(2, 2)])
    assert fsdp1.limits([torch.nn.Linear(2, 2)]) == []
