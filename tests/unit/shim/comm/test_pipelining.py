"""Seen on torch 2.13."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn

from torchrelay.protocol.errors import UnsupportedError
from torchrelay.shim.capture.values import small
from torchrelay.shim.comm import pipelining

MODULE = "torch.distributed.pipelining.schedules"


class Peers:
    """`alone`: whether steps are done without peers."""

    def __init__(self) -> None:
        self.alone = False

    def __call__(self, call: Callable[[], Any], alone: Callable[[], None]) -> Any:
        return alone() if self.alone else call()


@pytest.fixture
def peers(monkeypatch: pytest.MonkeyPatch) -> Iterator[Peers]:
    module = importlib.import_module(MODULE)
    base = module._PipelineSchedule
    for cls, name in (
        (base, "__init__"),
        (base, "_initialize_pp_stages"),
        (module.PipelineScheduleSingle, "step"),
        (module.PipelineScheduleMulti, "step"),
    ):
        monkeypatch.setattr(cls, name, getattr(cls, name))
    made = Peers()
    pipelining.hook(module, made)
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield made
    dist.destroy_process_group()
    pipelining._schedules.clear()


class Counting(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.calls = 0
        self.register_buffer("seen", torch.zeros(small.SMALL_BYTES))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        self.seen += 1
        return x


def build() -> tuple[nn.Module, Any]:
    from torch.distributed.pipelining import PipelineStage, ScheduleGPipe

    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Dropout(0.5), Counting(), nn.Linear(4, 1))
    stage = PipelineStage(module, 0, 1, torch.device("cpu"))
    return module, ScheduleGPipe(stage, 2, loss_fn=nn.functional.mse_loss)


def train(schedule: Any, module: nn.Module, steps: int) -> list[float]:
    found: list[torch.Tensor] = []
    total = []
    for _ in range(steps):
        module.zero_grad()
        schedule.step(torch.ones(4, 4), target=torch.zeros(4, 1), losses=found)
        total += [loss.item() for loss in found]
        with torch.no_grad():
            for p in module.parameters():
                p -= 0.1 * p.grad  # type: ignore[operator]  # declared wider than it is here
    return total


def test_asking_the_neighbours_again_leaves_no_trace(peers: Peers) -> None:
    module, schedule = build()
    torch.manual_seed(1)
    undisturbed = train(schedule, module, 4), [b.clone() for b in module.buffers()]
    calls = module.get_submodule("3").calls
    module, schedule = build()
    torch.manual_seed(1)
    losses = train(schedule, module, 2)
    pipelining.reset(2)
    assert not schedule._stage_forward_initialized
    losses += train(schedule, module, 2)
    assert losses == undisturbed[0]
    assert all(torch.equal(a, b) for a, b in zip(module.buffers(), undisturbed[1]))
    assert module.get_submodule("3").calls == calls
    assert schedule not in pipelining._again


def test_what_an_interrupted_step_has_kept_is_dropped(peers: Peers) -> None:
    _, schedule = build()
    schedule._internal_losses.append(torch.ones(()))
    schedule._stage.bwd_cache[0] = (None,)
    pipelining.reset(1)
    assert schedule._internal_losses == []
    assert schedule._stage.bwd_cache == {}


def test_without_peers_a_step_is_left_out_and_its_losses_have_their_form(peers: Peers) -> None:
    module, schedule = build()
    peers.alone = True
    found: list[torch.Tensor] = []
    before = [p.clone() for p in module.parameters()]
    schedule.step(torch.ones(4, 4), target=torch.zeros(4, 1), losses=found)
    assert [loss.shape for loss in found] == [torch.Size([])] * 2
    assert all(p.grad is None for p in module.parameters())
    assert all(torch.equal(a, b) for a, b in zip(before, module.parameters()))


def test_a_data_parallel_wrapper_is_not_asked_again(peers: Peers) -> None:
    inner = nn.Linear(2, 2)
    stage = SimpleNamespace(submod=nn.parallel.DistributedDataParallel(inner))
    wrapper = stage.submod
    with pipelining._without_wrappers([stage]):
        assert stage.submod is inner
    assert stage.submod is wrapper


def test_a_torch_that_is_built_otherwise_is_refused() -> None:
    with pytest.raises(UnsupportedError, match="lacks _PipelineSchedule"):
        pipelining.hook(SimpleNamespace(), Peers())  # type: ignore[arg-type]  # a stand-in
