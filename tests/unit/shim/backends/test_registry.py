from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d as c10d

from torchrelay.protocol.errors import UnsupportedError
from torchrelay.protocol.names import PROTECTED_BACKENDS
from torchrelay.shim.backends import registry
from torchrelay.shim.backends.gloo import Gloo
from torchrelay.shim.backends.nccl import Nccl


@pytest.fixture
def group() -> Iterator[Any]:
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield c10d._get_default_group()
    dist.destroy_process_group()


def test_the_backends_that_are_promised_are_those_that_are_there() -> None:
    assert tuple(registry.BACKENDS) == PROTECTED_BACKENDS


def test_each_device_of_a_group_is_served_by_its_backend(group: Any) -> None:
    assert {type(backend) for backend in registry.of_group(group).values()} == {Gloo}


@pytest.mark.parametrize("other", ["mpi", "ucc", "xccl", "somebodys"])
def test_a_group_on_another_backend_is_refused_by_its_name(other: str, group: Any) -> None:
    c10d._world.pg_backend_config[group] = ",".join(f"{device}:{other}" for device in ("cpu", "cuda"))
    with pytest.raises(
        UnsupportedError, match=f"the process group uses {other}; groups on gloo and nccl can be migrated"
    ):
        registry.check_groups([group])


@pytest.mark.skipif(dist.is_nccl_available(), reason="this torch has NCCL")
def test_a_torch_without_nccl_says_so() -> None:
    with pytest.raises(UnsupportedError, match="lacks ProcessGroupNCCL"):
        registry.named("nccl")
    assert registry.unconnected("nccl", 0, 1) is None


class Switches(Nccl):
    """As if torch had NCCL."""

    def missing(self) -> str:
        return ""

    def prepare(self) -> None: ...


def test_what_would_end_a_process_is_switched_off_and_what_the_user_had_set_is_told(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(registry.BACKENDS, "nccl", Switches())
    for name in Nccl.environment:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("TORCH_NCCL_ASYNC_ERROR_HANDLING", "3")
    registry.prepare.cache_clear()
    try:
        assert registry.prepare() == {"TORCH_NCCL_ASYNC_ERROR_HANDLING": "3"}
        assert {name: os.environ[name] for name in Nccl.environment} == Nccl.environment
        told = registry.notes([Switches()])
        assert "torch's own watchdog and monitor end no process" in told[0]
        assert told[1] == "not in force: TORCH_NCCL_ASYNC_ERROR_HANDLING=3"
        assert registry.notes([Gloo()]) == ()
    finally:
        registry.prepare.cache_clear()


@pytest.mark.parametrize(
    ("text", "is_failure"),
    [
        ("[../third_party/gloo/gloo/transport/tcp/pair.cc:534] Connection closed by peer", True),
        ("NCCL error in: ProcessGroupNCCL.cpp:3384, remote process exited or there was a network error", True),
        ("CUDA error: device-side assert triggered", False),
        ("mat1 and mat2 shapes cannot be multiplied", False),
    ],
)
def test_errors_that_say_that_a_peer_went_away_are_known(text: str, is_failure: bool) -> None:
    assert registry.is_peer_failure(text) is is_failure


def test_a_communicator_of_gloo_is_made_with_the_timeout_of_the_one_before(group: Any) -> None:
    like = group._get_backend(torch.device("cpu"))
    made = Gloo().new(dist.HashStore(), 0, 1, like)
    assert made.options._timeout == like.options._timeout


def test_a_gloo_communicator_that_is_not_connected_says_of_itself_what_a_connected_one_does() -> None:
    """From torch 2.14 on a group has its rank and its size from it: a new process would take itself for rank 0 of 1."""
    communicator = registry.unconnected("gloo", 1, 3)
    assert (communicator.name(), communicator.rank(), communicator.size()) == ("gloo", 1, 3)
