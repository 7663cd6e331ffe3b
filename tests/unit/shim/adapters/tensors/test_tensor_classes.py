from __future__ import annotations

from typing import Any

import pytest
import torch
from support.host_state import carry, take

from torchrelay.shim.adapters.tensors.dtensor import local
from torchrelay.shim.adapters.tensors.tensor_classes import has_graph, is_leaf, of_class, plain
from torchrelay.shim.capture.records import undo
from torchrelay.shim.capture.state.host_state import LargeTensor
from torchrelay.shim.capture.values import small


class Tagged(torch.Tensor):
    """Like monai's: attributes beside the content, and a way of its own for every function."""

    asked = 0

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        Tagged.asked += 1
        return super().__torch_function__(func, types, args, kwargs or {})


class Boxed(torch.Tensor):
    """Holds another tensor in place of memory."""

    @staticmethod
    def __new__(cls, inner: torch.Tensor) -> Any:
        return torch.Tensor._make_wrapper_subclass(cls, inner.shape, dtype=inner.dtype)

    def __init__(self, inner: torch.Tensor) -> None:
        self.inner = inner

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        raise NotImplementedError(func)


def tagged(values: list[float], **tags: Any) -> Tagged:
    made = torch.tensor(values).as_subclass(Tagged)
    made.__dict__.update(tags)
    return made


def test_its_memory_is_a_plain_tensors_and_the_class_is_not_asked() -> None:
    tensor = tagged([1.0, 2.0])
    Tagged.asked = 0
    assert type(plain(tensor)) is torch.Tensor
    assert type(local(tensor)) is torch.Tensor
    plain(tensor)[0] = 5.0
    assert small.take(tensor).data == small.take(torch.tensor([5.0, 2.0])).data
    assert Tagged.asked == 0
    assert plain(tensor)._version == 1


@pytest.mark.parametrize("tensor", [torch.ones(2), torch.nn.Parameter(torch.ones(2)), Boxed(torch.ones(2))])
def test_other_tensors_stay_what_they_are(tensor: torch.Tensor) -> None:
    assert plain(tensor) is tensor


def test_a_leaf_stays_one() -> None:
    leaf = of_class(torch.ones(2, requires_grad=True), Tagged)
    assert is_leaf(leaf)
    assert type(leaf) is Tagged
    assert not is_leaf(leaf * 2)


def test_a_new_process_makes_it_with_its_attributes() -> None:
    there: dict[str, Any] = {"loss": None}
    carry({"loss": tagged([3.0], meta={"seen": [1, 2]}, affine=torch.eye(2))}, there)
    loss = there["loss"]
    assert type(loss) is Tagged
    assert plain(loss).tolist() == [3.0]
    assert loss.meta == {"seen": [1, 2]}
    assert torch.equal(loss.affine, torch.eye(2))


def test_a_tensor_of_a_class_goes_back_with_its_attributes() -> None:
    loss = tagged([3.0], meta={"seen": [1, 2]})
    state = take({"loss": loss})
    plain(loss).fill_(9.0)
    loss.meta["seen"].append(3)
    loss.__dict__["more"] = 1
    undo.undo(state)
    assert plain(loss).tolist() == [3.0]
    assert loss.__dict__ == {"meta": {"seen": [1, 2]}}


def test_a_tensor_of_a_class_goes_back_though_all_its_attributes_were_exchanged() -> None:
    loss = tagged([3.0], meta=[1])
    state = take({"loss": loss})
    loss.__dict__ = {"meta": [2]}
    undo.undo(state)
    assert loss.__dict__ == {"meta": [1]}


def test_one_of_a_local_class_is_named_and_no_plain_one_takes_its_place() -> None:
    class Local(torch.Tensor):
        pass

    there: dict[str, Any] = {}
    rebuild = carry({"loss": torch.ones(1).as_subclass(Local)}, there)
    assert "loss" not in there
    assert rebuild.missing == ["tensor 'loss'"]


def test_large_ones_are_given_by_their_memory() -> None:
    tensor = torch.ones(small.SMALL_BYTES).as_subclass(Tagged)
    state = take({"bank": tensor})
    (content,) = [node.content for node in state.nodes if node.obj is tensor]
    assert isinstance(content, LargeTensor)
    there: dict[str, Any] = {"bank": None}
    carry({"bank": tensor}, there)
    assert type(there["bank"]) is Tagged


@pytest.mark.parametrize(
    ("tensor", "why"),
    [
        (Boxed(torch.ones(2)), "of class Boxed, which has no memory of its own"),
        (torch.ones(2).to_sparse(), "of layout torch.sparse_coo"),
        (torch.ones(1 << 20), "larger than 1 MiB"),
    ],
)
def test_why_a_tensor_is_not_in_a_journal_is_told_rightly(tensor: torch.Tensor, why: str) -> None:
    assert small.why_not_taken(tensor) == why


def test_a_view_is_part_of_a_graph_also_where_torch_cannot_say_it() -> None:
    flat = torch.nn.Parameter(torch.zeros(6))
    first, _ = torch.split(flat, [3, 3])
    assert has_graph(first)
    with torch.no_grad():
        flat.add_(1)
    with pytest.raises(RuntimeError, match="has been modified inplace"):
        _ = first.grad_fn
    assert has_graph(first)
    assert not is_leaf(first)
    assert is_leaf(flat)
    assert not has_graph(torch.zeros(3))
