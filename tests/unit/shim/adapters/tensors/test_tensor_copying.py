"""Who is about to be overwritten whole is told, by whatever name, and the call does what it did."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch.overrides import TorchFunctionMode

from torchrelay.shim.adapters.tensors import tensor_copying


@pytest.fixture
def told() -> Iterator[list[Any]]:
    many = torch._foreach_copy_
    found: list[Any] = []
    tensor_copying.check_supported()
    tensor_copying.watch(found.extend)
    yield found
    del torch.Tensor.copy_
    torch._foreach_copy_ = many


def test_a_copy_is_told_before_the_call(told: list[Any]) -> None:
    held = []

    class Held(list[Any]):
        def extend(self, tensors: Any) -> None:
            held.extend(tensor.clone() for tensor in tensors)

    del torch.Tensor.copy_
    tensor_copying.watch(Held().extend)
    torch.zeros(3).copy_(torch.ones(3))
    assert [tensor.tolist() for tensor in held] == [[0.0, 0.0, 0.0]]


def test_a_copy_is_told_by_whatever_name_it_is_called(told: list[Any]) -> None:
    parameter, more = torch.nn.Parameter(torch.zeros(2)), [torch.zeros(2), torch.zeros(3)]
    alias = parameter.data
    assert alias.copy_(torch.ones(2), non_blocking=True) is alias
    with torch.no_grad():
        parameter.copy_(torch.ones(2))
    torch._foreach_copy_(more, [torch.ones(2), torch.ones(3)])
    assert [id(t) for t in told] == [id(t) for t in (alias, parameter, *more)]
    assert [t.tolist() for t in more] == [[1.0, 1.0], [1.0, 1.0, 1.0]]
    assert parameter.tolist() == [1.0, 1.0]


def test_a_module_s_state_is_loaded(told: list[Any]) -> None:
    model = torch.nn.Linear(2, 2)
    model.load_state_dict({name: torch.ones_like(t) for name, t in model.state_dict().items()})
    assert {id(t) for t in told} == {id(p) for p in model.parameters()}


def test_the_error_of_a_wrong_call_is_torchs(told: list[Any]) -> None:
    with pytest.raises(RuntimeError, match="must match the size"):
        torch.zeros(2).copy_(torch.zeros(3))
    with pytest.raises(TypeError):
        torch.zeros(2).copy_()
    with pytest.raises(TypeError):
        torch._foreach_copy_(None, [torch.zeros(2)])


def test_modes_see_what_torch_has_under_that_name(told: list[Any]) -> None:
    seen = []

    class Seen(TorchFunctionMode):
        def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            seen.append(func)
            return func(*args, **(kwargs or {}))

    with Seen():
        torch.zeros(2).copy_(torch.ones(2))
    assert torch.Tensor.copy_ in seen
    assert len(told) == 2  # in front of the mode, and behind it


def test_compiled_code_is_one_graph(told: list[Any]) -> None:
    def act(target: torch.Tensor, source: torch.Tensor) -> torch.Tensor:
        target.copy_(source * 2)
        return target + 1

    compiled = torch.compile(act, backend="eager", fullgraph=True)
    assert compiled(torch.zeros(2), torch.ones(2)).tolist() == [3.0, 3.0]
