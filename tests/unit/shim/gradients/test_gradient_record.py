"""A new process gets the gradients that are state, zeros in place of those that will be dropped, and none where there were none."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from torchrelay.protocol.errors import StateMismatchError
from torchrelay.shim.adapters.tensors.parameter_gradients import gradients_of, put_gradient
from torchrelay.shim.gradients.gradient_record import GradientRecord, form_of, put, zeros
from torchrelay.shim.tensors import digest

NAMES = ("a", "b", "c", "d", "e")


@pytest.fixture
def parameters() -> dict[str, torch.nn.Parameter]:
    found = {name: torch.nn.Parameter(torch.ones(2, 3)) for name in NAMES}
    found["e"].grad = torch.ones(2, 3)  # of this process's own set-up
    return found


RECORD = GradientRecord(kept=("a",), zero=("b",), shed=("c",), pending=("d",))
CONTENT = torch.arange(6.0).reshape(2, 3)


def test_each_is_as_it_was_or_will_be_dropped(parameters: dict[str, torch.nn.Parameter]) -> None:
    unproven = put(RECORD, parameters, {"a": CONTENT, "d": CONTENT + 1}, own=False)
    found = [p.grad for p in parameters.values()]
    expected = [CONTENT, torch.zeros(2, 3), torch.zeros(2, 3), CONTENT + 1, None]
    for gradient, wanted in zip(found, expected, strict=True):
        assert (gradient is None and wanted is None) or torch.equal(gradient, wanted)  # type: ignore[arg-type]  # one of them
    assert unproven == {"c", "d"}


def test_one_that_is_state_and_does_not_come_is_missed(parameters: dict[str, torch.nn.Parameter]) -> None:
    with pytest.raises(StateMismatchError, match="the gradient of a, which the next step adds to"):
        put(RECORD, parameters, {"d": CONTENT}, own=False)


def test_the_same_content_proves_it(parameters: dict[str, torch.nn.Parameter]) -> None:
    told = RECORD._replace(digests=(("a", digest.digest(CONTENT)), ("d", digest.digest(CONTENT))))
    assert put(told, parameters, {"a": CONTENT, "d": CONTENT}, own=False) == {"c"}
    assert put(told, parameters, {"a": CONTENT, "d": CONTENT + 1}, own=False) == {"c", "d"}
    with pytest.raises(StateMismatchError, match="the gradient of a"):
        put(told, parameters, {"a": CONTENT + 1, "d": CONTENT}, own=False)


def test_what_the_rank_itself_has_saved_needs_no_proof(parameters: dict[str, torch.nn.Parameter]) -> None:
    assert put(RECORD, parameters, {"a": CONTENT, "d": CONTENT}, own=True) == {"c"}


def test_one_has_the_form_that_it_had() -> None:
    parameter, gradient = torch.nn.Parameter(torch.ones(2, 3)), torch.ones(3, 2).t()
    record = GradientRecord(kept=("a",), forms=(("a", form_of(gradient)),))
    put(record, {"a": parameter}, {"a": CONTENT}, own=False)
    assert parameter.grad is not None
    assert parameter.grad.stride() == (1, 2)
    assert torch.equal(parameter.grad, CONTENT)


def test_a_sparse_one_that_will_be_dropped_is_sparse_again() -> None:
    table = torch.nn.EmbeddingBag(10, 3, mode="sum", sparse=True)
    table(torch.tensor([[1, 4]])).sum().backward()
    assert table.weight.grad is not None
    record = GradientRecord(shed=("a",), forms=(("a", form_of(table.weight.grad)),))
    other = torch.nn.Parameter(torch.ones(10, 3))
    put(record, {"a": other}, {}, own=False)
    assert other.grad is not None
    assert other.grad.is_sparse
    assert form_of(other.grad) == form_of(table.weight.grad)
    assert not other.grad.to_dense().any()
    optimizer = torch.optim.SGD([other], lr=1.0)
    optimizer.zero_grad(set_to_none=False)
    torch.nn.functional.embedding_bag(torch.tensor([[1, 4]]), other, mode="sum", sparse=True).sum().backward()
    optimizer.step()
    assert other[[1, 4]].eq(0).all()
    assert other.sum() == 24


@pytest.fixture
def one_rank() -> Iterator[None]:
    torch.distributed.init_process_group("gloo", store=torch.distributed.HashStore(), rank=0, world_size=1)
    yield
    torch.distributed.destroy_process_group()


@pytest.mark.usefixtures("one_rank")
def test_one_that_is_spread_over_ranks_is_laid_out_as_it_was_and_not_as_its_parameter() -> None:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import Partial, Replicate, distribute_tensor

    mesh = init_device_mesh("cpu", (1,))
    parameter = torch.nn.Parameter(distribute_tensor(torch.ones(2, 3), mesh, [Replicate()]))
    gradient = torch.distributed.tensor.DTensor.from_local(CONTENT, mesh, [Partial()])
    made = zeros(parameter, form_of(gradient))
    assert isinstance(made, torch.distributed.tensor.DTensor)
    assert made.placements == (Partial(),)
    assert made.device_mesh is mesh
    put(GradientRecord(kept=("a",), forms=(("a", form_of(gradient)),)), {"a": parameter}, {"a": CONTENT}, own=False)
    assert isinstance(parameter.grad, torch.distributed.tensor.DTensor)
    assert torch.equal(parameter.grad.to_local(), CONTENT)


class Counted(torch.overrides.TorchFunctionMode):
    def __init__(self) -> None:
        super().__init__()
        self.calls = 0

    def __torch_function__(self, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]  # torch does not say its types
        self.calls += 1
        return func(*args, **(kwargs or {}))


def test_modes_that_take_part_in_every_call_hear_nothing_of_it() -> None:
    parameter, gradient = torch.nn.Parameter(torch.ones(2)), torch.ones(2)
    with Counted() as mode:
        put_gradient(parameter, gradient)
        assert gradients_of([parameter])[0] is gradient
    assert mode.calls == 0
