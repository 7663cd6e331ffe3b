"""Seen on torch 2.11 and 2.13."""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.distributed as dist
from support.host_state import carry
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

from torchrelay.shim.adapters.parallel import fsdp2, fsdp2_idle
from torchrelay.shim.capture.models import device
from torchrelay.shim.capture.state.host_state import HostState

STATE_MODULE = "torch.distributed.fsdp._fully_shard._fsdp_state"


class Interrupted(Exception):
    pass


def never(reason: str) -> None:
    raise AssertionError(reason)


@pytest.fixture(params=["torch's own reset", "ours"])
def model(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> Iterator[torch.nn.Module]:
    module = importlib.import_module(STATE_MODULE)
    monkeypatch.setattr(module.FSDPState, "init", module.FSDPState.init)
    if request.param == "ours":
        monkeypatch.delattr(module.FSDPState, "_reset_iter_state", raising=False)
    elif not hasattr(module.FSDPState, "_reset_iter_state"):
        pytest.skip("this torch has none")
    fsdp2.hook(module, never)
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    torch.manual_seed(0)
    made = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Sequential(torch.nn.Linear(4, 4)), torch.nn.Linear(4, 1))
    mesh = init_device_mesh("cpu", (1,))
    fully_shard(made[1], mesh=mesh)
    yield fully_shard(made, mesh=mesh)
    fsdp2._states.clear()
    dist.destroy_process_group()


def gradients(model: torch.nn.Module) -> list[Any]:
    return [p.grad.to_local().tolist() for p in model.parameters()]  # type: ignore[union-attr, operator]  # declared wider than it is here


def step(model: torch.nn.Module) -> None:
    model(torch.ones(2, 4)).sum().backward()


def test_a_backward_after_an_interrupted_one_is_as_if_that_had_not_been(model: torch.nn.Module) -> None:
    step(model)
    undisturbed = gradients(model)
    for p in model.parameters():
        p.grad = None

    def interrupt() -> None:
        raise Interrupted

    with pytest.raises(Interrupted), fsdp2.after_each_group(interrupt):
        step(model)
    left = [p for s in fsdp2._states for g in fsdp2_idle.groups_of(s) for p in g.fsdp_params]
    assert any(p._unsharded_param.grad is not None for p in left)  # what the root's group had not reduced yet
    fsdp2.reset()
    for p in model.parameters():
        p.grad = None
    step(model)
    assert gradients(model) == undisturbed


def test_after_a_forward_alone_the_shards_are_what_is_listed(model: torch.nn.Module) -> None:
    with torch.no_grad():
        model(torch.ones(2, 4))
    gathered = list(model.parameters())
    listed = device.whole(HostState(), [model])
    fsdp2.reset()
    assert all(a is b for a, b in zip(listed.values(), model.parameters()))
    assert any(a is not b for a, b in zip(gathered, model.parameters()))


@pytest.mark.parametrize("gathered", [False, True])
def test_an_optimizer_gets_the_shards_of_its_own_process(model: torch.nn.Module, gathered: bool) -> None:
    """Even where parameters are gathered at the moment, as an evaluation leaves them."""
    layers = torch.nn.Linear(4, 4), torch.nn.Sequential(torch.nn.Linear(4, 4)), torch.nn.Linear(4, 1)
    other = fully_shard(torch.nn.Sequential(*layers), mesh=init_device_mesh("cpu", (1,)))
    shards = list(other.parameters())
    recorded, own = torch.optim.SGD(list(model.parameters()), lr=0.5), torch.optim.SGD(shards, lr=0.1)
    for each in (model, other) if gathered else ():
        with torch.no_grad():
            each(torch.ones(2, 4))
    assert any(a is not b for a, b in zip(other.parameters(), shards)) is gathered
    carry({"model": model, "optimizer": recorded}, {"model": other, "optimizer": own})
    assert own.param_groups[0]["lr"] == 0.5
    assert all(a is b for a, b in zip(own.param_groups[0]["params"], shards, strict=True))


def test_a_gather_in_flight_when_the_communicator_broke_is_forgotten() -> None:
    def wait() -> None:
        raise RuntimeError("Connection closed by peer")

    group = SimpleNamespace(_all_gather_result=SimpleNamespace(all_gather_work=SimpleNamespace(wait=wait)))
    fsdp2._forget_gather(group)
    assert group._all_gather_result is None


def test_a_torch_that_is_built_otherwise_is_told_of_when_a_module_is_sharded() -> None:
    """Whoever shards none is protected with it, too."""

    class State:
        def init(self) -> None:
            pass

    reasons: list[str] = []
    fsdp2.hook(SimpleNamespace(FSDPState=State, FSDPParamGroup=object), reasons.append)  # type: ignore[arg-type]  # a stand-in
    assert reasons == []
    State().init()
    assert len(reasons) == 1
    assert "lacks _reset_iter_state and _to_sharded" in reasons[0]
