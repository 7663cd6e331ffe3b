from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from torchrelay.protocol.errors import UnsupportedError
from torchrelay.shim.capture.values import small
from torchrelay.shim.tensors import tensor_bytes


@pytest.mark.parametrize(
    "tensor",
    [
        torch.tensor(1.5),
        torch.empty(0, 3),
        torch.tensor([1.0, float("nan"), -0.0]),
        torch.arange(6).reshape(2, 3).t(),
        torch.tensor([True, False]),
        torch.ones(2, dtype=torch.bfloat16),
        torch.tensor([1 + 2j]),
        torch.ones(2, requires_grad=True),
    ],
    ids=lambda t: f"{t.dtype} {tuple(t.shape)}",
)
def test_a_value_is_built_again_bit_by_bit(tensor: torch.Tensor) -> None:
    value = small.take(tensor)
    built = small.build(value)
    assert (built.dtype, built.shape, built.requires_grad) == (tensor.dtype, tensor.shape, tensor.requires_grad)
    assert small.take(built) == value
    assert small.fits(value, tensor)


@pytest.mark.parametrize(
    "tensor",
    [
        torch.rand(3, 4).t(),
        torch.rand(2, 3, 4, 5).to(memory_format=torch.channels_last),
        torch.rand(2, 1, 4, 5).to(memory_format=torch.channels_last),
        torch.rand(6, 4).t()[:, :3],
    ],
    ids=lambda t: f"{tuple(t.shape)} in strides {t.stride()}",
)
def test_it_lies_in_memory_in_the_same_order(tensor: torch.Tensor) -> None:
    built = small.build(small.take(tensor))
    assert torch.equal(built, tensor)
    assert built.stride() == torch.empty_like(tensor).stride()
    assert small.take(built) == small.take(tensor)


def test_a_contiguous_tensor_has_no_strides_of_its_own() -> None:
    for tensor in (torch.rand(3, 4), torch.rand(2, 1, 4, 5), torch.rand(4, 6)[:, :3], torch.tensor(1.0)):
        assert small.take(tensor).strides == ()


def test_what_has_no_content_has_its_form_alone() -> None:
    planned = torch.empty(100_000, dtype=torch.bfloat16, device="meta")
    assert small.is_small(planned), "there is nothing that a donor could give"
    value = small.take(planned)
    built = small.build(value)
    assert (built.device.type, built.shape, built.dtype, value.data) == ("meta", planned.shape, planned.dtype, b"")
    small.put(value, planned)
    assert small.fits(value, planned)
    assert not small.fits(value, torch.zeros(100_000, dtype=torch.bfloat16)), "content would be given up for nothing"
    assert not small.fits(small.take(torch.zeros(3)), torch.empty(3, device="meta"))


def test_putting_writes_in_place_past_autograd() -> None:
    tensor = torch.zeros(2, requires_grad=True)
    alias = tensor.detach()
    small.put(small.take(torch.ones(2)), tensor)
    assert alias.tolist() == [1.0, 1.0]


@pytest.mark.parametrize("shape", [(1, 3), (2, 1), (1, 1)])
def test_what_expand_has_repeated_is_written_where_it_is(shape: tuple[int, int]) -> None:
    base = torch.zeros(shape)
    tensor, content = base.expand(2, 3), torch.rand(shape).expand(2, 3)
    small.put(small.take(content), tensor)
    assert torch.equal(tensor, content)
    assert tensor.data_ptr() == base.data_ptr()


def test_different_values_are_not_written_over_one_another_where_set_up_has_repeated_one() -> None:
    base = torch.zeros(1)
    tensor, content = base.expand(3), torch.tensor([1.0, float("nan"), 3.0])
    small.put(small.take(content), tensor)
    assert small.take(tensor) == small.take(content)
    assert base.item() == 0.0


def test_only_small_dense_tensors_are_kept_by_value() -> None:
    limit = small.SMALL_BYTES // 4
    assert small.is_small(torch.empty(limit))
    assert not small.is_small(torch.empty(limit + 1))
    assert small.is_small(torch.empty(limit + 1), small.FRESH_BYTES)
    assert not small.is_small(torch.eye(2).to_sparse())


def test_another_shape_or_type_does_not_fit() -> None:
    value = small.take(torch.ones(2))
    assert not small.fits(value, torch.ones(3))
    assert not small.fits(value, torch.ones(2, dtype=torch.float64))
    assert not small.fits(value, None)


@pytest.mark.parametrize("name", ["load", "__class__", "ops", "float32; x"])
def test_a_dtype_that_torch_does_not_have_is_refused(name: str) -> None:
    with pytest.raises(ValueError, match="no dtype"):
        small.build(small.TensorValue(name, (), "cpu", False, b"\0\0\0\0"))


def test_what_a_view_only_promises_to_conjugate_or_negate_is_taken_as_it_reads() -> None:
    numbers = torch.tensor([1 + 2j, 3 - 4j])
    for lazy in (numbers.conj(), numbers.conj().imag[:1]):
        assert lazy.is_contiguous()
        assert torch.equal(small.build(small.take(lazy)), lazy)


def test_a_view_of_memory_that_was_freed_is_not_read() -> None:
    flat = torch.zeros(1000)
    views = [flat[:10], flat[500:510]]
    assert all(small.is_small(view) for view in views)
    flat.untyped_storage().resize_(0)
    for view in views:
        assert not small.is_small(view)
        assert small.take_if_small(view, small.SMALL_BYTES) is None
        with pytest.raises(UnsupportedError, match="memory was freed"):
            tensor_bytes.local(view)


@pytest.mark.parametrize(
    "change",
    [
        lambda t: t.add_(1),
        lambda t: t.numpy().__setitem__(0, -0.0),
        lambda t: t.unsqueeze_(0),
        lambda t: t.requires_grad_(),
        lambda t: t.resize_(3),
        lambda t: t.set_(torch.ones(4)),
        lambda t: t.untyped_storage().resize_(0),
        lambda t: setattr(t, "data", t.data.to(torch.int32)),
        lambda t: setattr(t, "data", torch.zeros(4, 2)[:, 0]),
    ],
    ids=["content", "sign", "shape", "gradient", "size", "memory", "freed", "type", "strides"],
)
def test_what_may_have_another_value_is_not_held_for_unchanged(change: Callable[[torch.Tensor], object]) -> None:
    tensor = torch.zeros(4)
    value = small.take(tensor)
    assert small.is_still(value, tensor)
    change(tensor)
    assert not small.is_still(value, tensor)


def test_what_is_as_it_was_is_not_written_to_so_that_a_kept_graph_still_works() -> None:
    weight = torch.ones(3, requires_grad=True)
    hidden = torch.full((3,), 2.0)
    kept = (weight * hidden).sum()
    value = small.take(hidden)
    small.put(value, hidden)
    kept.backward()
    assert weight.grad is not None
    assert weight.grad.tolist() == [2.0, 2.0, 2.0]
