"""Which gradients are held behind an update, and that only what nobody has written to since is given."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from support.host_state import take
from torch.nn.parallel import DistributedDataParallel

from torchrelay.shim.capture.models.modules import ModuleTrees
from torchrelay.shim.capture.state.host_state import HostState
from torchrelay.shim.step.updates import updated_gradients
from torchrelay.shim.step.updates.updated_gradients import UpdatedGradients


@pytest.fixture(autouse=True)
def one_rank() -> Iterator[None]:
    torch.distributed.init_process_group("gloo", store=torch.distributed.HashStore(), rank=0, world_size=1)
    yield
    torch.distributed.destroy_process_group()


def state_of(model: torch.nn.Module) -> HostState:
    optimizer = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=0.1)
    return take({"model": model, "optimizer": optimizer}, ModuleTrees())


def computed(model: torch.nn.Module) -> dict[str, torch.Tensor]:
    """Compute gradients, past the wrapper, whose end would wait for threads of gloo that want Python. Return copies, by name."""
    (model.module if isinstance(model, DistributedDataParallel) else model)(
        torch.arange(6.0).reshape(2, 3)
    ).square().sum().backward()
    return {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}


def noted(model: torch.nn.Module) -> UpdatedGradients:
    gradients = UpdatedGradients()
    gradients.note(state_of(model))
    return gradients


def given(gradients: UpdatedGradients) -> dict[str, list[float]]:
    return {path.partition(".")[2]: tensor.flatten().tolist() for path, tensor in gradients.tensors().items()}


@pytest.fixture
def model() -> DistributedDataParallel:
    return DistributedDataParallel(torch.nn.Linear(3, 2))


def test_what_the_script_drops_is_given_as_the_update_has_left_it(model: DistributedDataParallel) -> None:
    expected = {name.removeprefix("module."): gradient.flatten().tolist() for name, gradient in computed(model).items()}
    gradients = noted(model)
    model.zero_grad()
    assert given(gradients) == expected
    computed(model)  # the next step's have memory of their own
    assert given(gradients) == expected


@pytest.mark.parametrize("set_to_none", [False, True])
def test_what_was_written_to_since_is_not_given(model: DistributedDataParallel, set_to_none: bool) -> None:
    computed(model)
    gradients = noted(model)
    assert model.module.bias.grad is not None
    model.module.bias.grad.mul_(2)
    assert given(gradients).keys() == {"weight"}
    model.zero_grad(set_to_none=set_to_none)
    assert given(gradients).keys() == ({"weight"} if set_to_none else set())


def test_gradients_in_a_wrappers_buckets_are_not_given(model: DistributedDataParallel) -> None:
    bucket = torch.zeros(8)
    model.module.weight.grad, model.module.bias.grad = bucket[:6].view(2, 3), bucket[6:]
    assert noted(model).tensors() == {}


def test_a_model_without_a_wrapper_gives_none() -> None:
    model = torch.nn.Linear(3, 2)
    computed(model)
    assert noted(model).tensors() == {}


def test_parameters_that_a_wrapper_leaves_alone_are_not_given() -> None:
    plain = torch.nn.Linear(3, 2)
    DistributedDataParallel._set_params_and_buffers_to_ignore_for_model(plain, ["bias"])
    model = DistributedDataParallel(plain)
    computed(model)
    assert given(noted(model)).keys() == {"weight"}


def test_parameters_that_no_optimizer_updates_are_not_given(model: DistributedDataParallel) -> None:
    """Nothing would show that ranks had other gradients of these."""
    computed(model)
    gradients = UpdatedGradients()
    optimizer = torch.optim.SGD([model.module.bias], lr=0.1)
    gradients.note(take({"model": model, "optimizer": optimizer}, ModuleTrees()))
    assert given(gradients).keys() == {"bias"}


def test_large_models_hold_none(model: DistributedDataParallel, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(updated_gradients, "MOST_BYTES", 31)
    computed(model)
    assert noted(model).tensors() == {}


def test_nothing_is_given_between_a_gate_and_its_update(model: DistributedDataParallel) -> None:
    computed(model)
    gradients = noted(model)
    gradients.gate_passed()
    assert gradients.tensors() == {}
