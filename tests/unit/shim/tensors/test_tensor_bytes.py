from __future__ import annotations

import gc
import weakref

import pytest
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Shard, distribute_tensor

from torchrelay.protocol.errors import StateMismatchError, UnsupportedError
from torchrelay.shim.tensors.digest import digest
from torchrelay.shim.tensors.tensor_bytes import (
    contents,
    flat_bytes,
    local,
    memory,
    pack,
    padded,
    plain_copy,
    size_bytes,
    unpack,
    write,
)

DTYPES = sorted(
    {v for v in vars(torch).values() if isinstance(v, torch.dtype) and not str(v).startswith("torch.q")},
    key=str,
)


def filled(dtype: torch.dtype, shape: tuple[int, ...], seed: int = 0) -> torch.Tensor:
    """A tensor with random bytes, for any dtype."""
    tensor = torch.empty(shape, dtype=dtype)
    size = tensor.numel() * tensor.element_size()
    data = torch.randint(0, 2 if dtype == torch.bool else 256, (size,), generator=torch.Generator().manual_seed(seed))
    if size:
        memory(tensor)[:] = bytes(data.tolist())
    return tensor


@pytest.mark.filterwarnings("ignore:ComplexHalf support is experimental")
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_memory_of_every_dtype_is_the_tensor_itself(dtype: torch.dtype) -> None:
    tensor = filled(dtype, (3, 5))
    view = memory(tensor)
    assert len(view) == 15 * tensor.element_size() == size_bytes(tensor)
    assert bytes(view) == bytes(flat_bytes(tensor).tolist())
    view[0] = 1 - (view[0] & 1)
    assert flat_bytes(tensor)[0].item() == view[0]


def test_a_view_keeps_its_tensor_alive_and_lets_it_go() -> None:
    tensor = torch.arange(1000)
    alive = weakref.ref(tensor)
    view = memory(tensor)
    del tensor
    gc.collect()
    assert alive() is not None
    assert view.cast("q")[999] == 999
    del view
    gc.collect()
    assert alive() is None


@pytest.mark.parametrize("shape", [(0,), (3, 0, 2)])
def test_a_tensor_without_elements_has_no_bytes(shape: tuple[int, ...]) -> None:
    assert len(memory(torch.empty(shape))) == 0


def test_a_scalar_has_the_bytes_of_its_value() -> None:
    assert bytes(memory(torch.tensor(7, dtype=torch.int32))) == b"\x07\0\0\0"
    assert flat_bytes(torch.tensor(7, dtype=torch.int32)).tolist() == [7, 0, 0, 0]


def test_local_drops_the_graph_and_keeps_the_memory() -> None:
    parameter = torch.nn.Parameter(torch.ones(4))
    assert not local(parameter).requires_grad
    assert local(parameter).data_ptr() == parameter.data_ptr()


def test_of_a_distributed_tensor_the_local_shard_counts() -> None:
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        mesh = init_device_mesh("cpu", (1,))
        tensor = distribute_tensor(torch.arange(12.0).reshape(4, 3), mesh, [Shard(0)])
        shard = local(torch.nn.Parameter(tensor))
        assert type(shard) is torch.Tensor
        assert shard.data_ptr() == tensor.to_local().data_ptr()
        assert digest(tensor) == digest(torch.arange(12.0).reshape(4, 3))
    finally:
        dist.destroy_process_group()


@pytest.mark.parametrize(
    "tensor",
    [
        torch.eye(3).to_sparse(),
        torch.empty(3, device="meta"),
    ],
    ids=["sparse", "meta"],
)
def test_tensors_without_plain_bytes_are_refused_by_name(tensor: torch.Tensor) -> None:
    with pytest.raises(UnsupportedError, match=r"model\.weight"):
        local(tensor, "model.weight")


def test_a_tensor_whose_storage_was_freed_is_refused() -> None:
    tensor = torch.ones(8)
    tensor.untyped_storage().resize_(0)
    with pytest.raises(UnsupportedError, match="freed"):
        local(tensor, "shard")


def test_lazily_conjugated_and_negated_tensors_are_resolved() -> None:
    values = torch.tensor([1 + 2j, 3 - 4j])
    conjugated = plain_copy(values.conj())
    assert bytes(memory(conjugated)) == bytes(memory(torch.tensor([1 - 2j, 3 + 4j])))
    negated = values.conj().imag
    assert negated.is_neg()
    assert bytes(memory(plain_copy(negated))) == bytes(memory(torch.tensor([-2.0, 4.0])))


def test_packing_and_unpacking_gives_every_layout_back() -> None:
    tensors = [
        torch.rand(3),
        torch.rand(4, 5).t(),
        torch.tensor(True),
        torch.rand(7)[::2],
        torch.rand(2).to(torch.half),
    ]
    packed = torch.full((sum(padded(size_bytes(t)) for t in tensors),), 255, dtype=torch.uint8)
    pack(tensors, packed)
    targets = [torch.zeros_like(t) for t in tensors]
    targets[1] = torch.zeros(4, 10)[:, ::2].t()
    unpack(packed, targets)
    assert all(torch.equal(a, b) for a, b in zip(tensors, targets, strict=True))
    assert packed[12:16].tolist() == [0, 0, 0, 0]


def test_the_contents_of_many_tensors_come_in_their_own_order() -> None:
    tensors = [
        torch.tensor(1.5),
        torch.tensor([7, -1]),
        torch.empty(0, 3),
        torch.arange(6.0).reshape(2, 3).t(),
        torch.tensor([1 + 2j]).conj(),
        torch.tensor([True, False, True]),
        torch.tensor(3),
        torch.tensor([float("nan"), -0.0], requires_grad=True),
    ]
    assert contents(tensors) == [memory(plain_copy(t.detach())).tobytes() for t in tensors]
    assert contents([]) == []


def test_elements_that_share_memory_are_written_once() -> None:
    base = torch.zeros(2, 1)
    write(base.expand(2, 3), torch.tensor([[1.0], [float("nan")]]).expand(2, 3))
    assert base[0].item() == 1.0
    assert base[1].isnan()
    with pytest.raises(StateMismatchError, match="share memory"):
        write(base.expand(2, 3), torch.arange(6.0).view(2, 3))


def test_small_tensors_that_expand_has_made_are_unpacked() -> None:
    sent, base = [torch.ones(1).expand(4), torch.arange(3.0)], torch.zeros(1)
    packed = torch.empty(sum(padded(size_bytes(t)) for t in sent), dtype=torch.uint8)
    pack(sent, packed)
    unpack(packed, [base.expand(4), torch.empty(3)])
    assert base.item() == 1.0
