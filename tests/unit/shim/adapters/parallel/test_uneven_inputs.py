"""Who begins to train on unlike numbers of batches is told, unless all ranks end together."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch.distributed as dist
from torch.distributed.algorithms.join import Join, Joinable, JoinHook

from torchrelay.shim.adapters.parallel import uneven_inputs


class Alone(Joinable):
    def __init__(self) -> None:
        super().__init__()

    def join_hook(self, **kwargs: Any) -> JoinHook:
        return JoinHook()

    @property
    def join_device(self) -> Any:
        return "cpu"

    @property
    def join_process_group(self) -> Any:
        return dist.group.WORLD


@pytest.fixture
def told() -> Iterator[list[str]]:
    enter = Join.__enter__
    found: list[str] = []
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    uneven_inputs.watch(lambda: found.append("begins"))
    yield found
    dist.destroy_process_group()
    Join.__enter__ = enter  # type: ignore[method-assign]  # as it was


@pytest.mark.parametrize(
    ("options", "begins"),
    [({}, ["begins"]), ({"enable": False}, []), ({"throw_on_early_termination": True}, [])],
)
def test_before_the_first_batch(told: list[str], options: dict[str, bool], begins: list[str]) -> None:
    joined = Join([Alone()], **options)
    assert told == []
    with joined:
        assert told == begins
