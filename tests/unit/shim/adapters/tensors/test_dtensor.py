"""Seen on torch 2.13."""

from __future__ import annotations

import pickle
from collections.abc import Iterator

import pytest
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.tensor import DTensor, Replicate, Shard

from torchrelay.protocol.errors import StateMismatchError
from torchrelay.shim.adapters.tensors import dtensor
from torchrelay.shim.capture.models import device
from torchrelay.shim.capture.values import small


@pytest.fixture
def mesh() -> Iterator[DeviceMesh]:
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield init_device_mesh("cpu", (1, 1), mesh_dim_names=("replicate", "shard"))
    dist.destroy_process_group()


def spread(mesh: DeviceMesh, values: torch.Tensor) -> DTensor:
    return DTensor.from_local(values, mesh, [Replicate(), Shard(0)], run_check=False)


def test_of_a_spread_tensor_the_local_part_counts(mesh: DeviceMesh) -> None:
    part = torch.arange(4.0)
    assert dtensor.local(part) is part
    assert dtensor.local(spread(mesh, part)).tolist() == part.tolist()
    assert dtensor.is_spread(torch.nn.Parameter(spread(mesh, part)))
    assert not dtensor.is_spread(torch.nn.Parameter(part))


def test_a_small_spread_tensor_is_carried_by_value_and_built_over_the_same_groups(mesh: DeviceMesh) -> None:
    tensor = spread(mesh, torch.arange(3.0))
    assert small.is_small(tensor)
    value = pickle.loads(pickle.dumps(small.take(tensor)))
    built = small.build(value)
    assert isinstance(built, DTensor)
    assert dtensor._groups(built.device_mesh) == dtensor._groups(mesh)
    assert (built.placements, built.to_local().tolist()) == (tensor.placements, [0.0, 1.0, 2.0])
    other = spread(mesh, torch.zeros(3))
    assert small.fits(value, other)
    small.put(value, other)
    assert other.to_local().tolist() == [0.0, 1.0, 2.0]


def test_a_spread_value_fits_no_plain_tensor_nor_one_that_is_spread_otherwise(mesh: DeviceMesh) -> None:
    value = small.take(spread(mesh, torch.zeros(3)))
    assert not small.fits(value, torch.zeros(3))
    assert not small.fits(value, DTensor.from_local(torch.zeros(3), mesh, [Replicate(), Replicate()], run_check=False))


def test_what_is_put_around_a_part_has_its_memory_though_the_mesh_is_of_another_device(
    mesh: DeviceMesh, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, part = spread(mesh, torch.zeros(3)), torch.ones(3)
    layout = dtensor.spread_of(model)
    assert layout is not None
    monkeypatch.setattr(type(mesh), "device_type", property(lambda self: "meta"))
    for made in (dtensor.like(model, part), dtensor.around(part, layout, mesh)):
        part += 1
        assert dtensor.local(made).tolist() == part.tolist()
        assert isinstance(made, DTensor)
        assert (made.placements, made.shape, made.requires_grad) == (model.placements, model.shape, False)


def test_a_tensor_over_groups_that_are_not_here_is_refused(mesh: DeviceMesh) -> None:
    layout = dtensor.Spread(("nobody's", "group"), (Replicate(), Shard(0)), (3,), (1,))
    with pytest.raises(StateMismatchError, match="nobody's"):
        dtensor.around(torch.zeros(3), layout)


def test_a_large_spread_tensor_is_not(mesh: DeviceMesh) -> None:
    assert not small.is_small(spread(mesh, torch.zeros(small.SMALL_BYTES)))


def test_optimizer_state_is_spread_as_its_parameter_and_step_counts_are_not(mesh: DeviceMesh) -> None:
    parameter = torch.nn.Parameter(spread(mesh, torch.zeros(3)))
    made = device.like_parameter(parameter, "exp_avg", torch.ones(3))
    assert isinstance(made, DTensor)
    assert dtensor.laid_out_alike(made, parameter)
    assert not dtensor.is_spread(device.like_parameter(parameter, "step", torch.tensor(1.0)))
    assert not dtensor.is_spread(device.like_parameter(parameter, "row", torch.ones(2)))


def test_replicas_are_the_ranks_along_the_replicated_dimensions(monkeypatch: pytest.MonkeyPatch) -> None:
    class Spec:
        placements = (Replicate(), Shard(0))

        class mesh:
            mesh = torch.tensor([[0, 1], [2, 3]])

            @staticmethod
            def get_coordinate() -> list[int]:
                return [1, 0]

    class Tensor:
        _spec = Spec

    monkeypatch.setattr(dtensor, "is_spread", lambda _: True)
    assert dtensor.replica_ranks(Tensor) == [0, 2]
