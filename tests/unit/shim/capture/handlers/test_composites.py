"""Sparse and quantized tensors that a script keeps: put back, and carried over."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from support.host_state import carry, take

from torchrelay.protocol.errors import StateMismatchError
from torchrelay.shim.capture.records import undo

# Torch warns once in a process that such tensors are young, whoever makes the first one.
pytestmark = pytest.mark.filterwarnings(
    "ignore:Sparse (invariant checks|CSR tensor support|CSC|BSR|BSC):UserWarning",
    "ignore:The PyTorch API of nested tensors:UserWarning",
    "ignore:torch.quantize_per_tensor:UserWarning",
)

Make = Callable[[float], torch.Tensor]


def coo(value: float) -> torch.Tensor:
    return torch.sparse_coo_tensor(torch.tensor([[0, 1], [1, 0]]), torch.tensor([value, 2.0]), (2, 2)).coalesce()


def compressed(layout: torch.layout) -> Make:
    return lambda value: torch.tensor([[value, 0.0], [0.0, 2.0]]).to_sparse(layout=layout)


def blocks(layout: torch.layout) -> Make:
    return lambda value: torch.tensor([[value, 0.0], [0.0, 2.0]]).to_sparse(layout=layout, blocksize=(1, 1))


def per_tensor(value: float) -> torch.Tensor:
    return torch.quantize_per_tensor(torch.tensor([value, 2.0]), 0.1, 3, torch.quint8)


def per_channel(value: float) -> torch.Tensor:
    scales = torch.tensor([0.1, 0.2])
    zeros = torch.tensor([0, 1])
    return torch.quantize_per_channel(torch.tensor([[value], [2.0]]), scales, zeros, 0, torch.qint8)


MAKERS: dict[str, Make] = {
    "coo": coo,
    "csr": compressed(torch.sparse_csr),
    "csc": compressed(torch.sparse_csc),
    "bsr": blocks(torch.sparse_bsr),
    "bsc": blocks(torch.sparse_bsc),
    "quantized": per_tensor,
    "quantized by channel": per_channel,
}


def dense(tensor: torch.Tensor) -> list[Any]:
    found = tensor.dequantize() if tensor.is_quantized else tensor.to_dense()
    return found.tolist()  # type: ignore[no-any-return]  # torch has no type for it


@pytest.mark.parametrize("make", MAKERS.values(), ids=MAKERS)
def test_another_tensor_in_a_variable_comes_over(make: Make) -> None:
    target = {"graph": make(1.0)}
    carry({"graph": make(5.0)}, target)
    assert dense(target["graph"]) == dense(make(5.0))


@pytest.mark.parametrize("make", MAKERS.values(), ids=MAKERS)
def test_one_that_is_made_in_training_comes_over(make: Make) -> None:
    target: dict[str, Any] = {"kept": []}
    carry({"kept": [make(5.0)]}, target)
    assert dense(target["kept"][0]) == dense(make(5.0))


@pytest.mark.parametrize("make", [coo, MAKERS["csr"]], ids=["coo", "csr"])
def test_one_that_a_step_writes_to_goes_back(make: Make) -> None:
    graph = make(1.0)
    state = take({"graph": graph})
    graph.mul_(2)
    assert dense(graph) != dense(make(1.0))
    undo.undo(state)
    assert dense(graph) == dense(make(1.0))


def test_one_that_has_got_more_elements_goes_back_as_coalesced_as_it_was() -> None:
    graph = coo(1.0)
    state = take({"graph": graph})
    graph.add_(torch.sparse_coo_tensor(torch.tensor([[0], [0]]), torch.tensor([4.0]), (2, 2)))
    undo.undo(state)
    assert (dense(graph), graph.is_coalesced(), graph._nnz()) == (dense(coo(1.0)), True, 2)


def large(value: float) -> torch.Tensor:
    places = torch.arange(40_000)
    return torch.sparse_coo_tensor(torch.stack([places % 200, places // 200]), torch.full((40_000,), value), (200, 200))


def test_a_large_one_that_set_up_makes_alike_in_each_process_stays() -> None:
    target = {"graph": large(1.0)}
    kept = target["graph"]
    assert carry({"graph": large(1.0)}, target).missing == []
    assert target["graph"] is kept


def test_a_large_one_of_another_content_is_named() -> None:
    assert carry({"graph": large(2.0)}, {"graph": large(1.0)}).missing == ["composite 'graph'"]


def test_a_large_one_that_a_step_writes_to_is_refused() -> None:
    graph = large(1.0)
    state = take({"graph": graph})
    graph.mul_(2)
    with pytest.raises(StateMismatchError, match="a sparse_coo tensor larger than 64 KiB"):
        undo.undo(state)


def test_a_nested_one_is_named() -> None:
    nested = torch.nested.nested_tensor([torch.zeros(2), torch.ones(3)])
    assert take({"rows": nested}).unknown == ["script.rows (a nested tensor)"]


def test_a_sparse_buffer_hinders_no_walk() -> None:
    layer = torch.nn.Linear(2, 2)
    layer.register_buffer("graph", coo(1.0))
    assert take({"layer": layer}).roots == [layer]
