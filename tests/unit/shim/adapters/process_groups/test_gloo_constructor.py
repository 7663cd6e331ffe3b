"""What torch constructs for a group that the script makes can be constructed elsewhere, and is gloo's all the same."""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d

from torchrelay.shim.adapters.process_groups.gloo_constructor import called_by
from torchrelay.shim.comm.generations.connecting import connected
from torchrelay.shim.comm.generations.generation import Generation

HALF_AN_HOUR = timedelta(minutes=30)


@pytest.fixture
def alone() -> Iterator[None]:
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


@pytest.mark.parametrize("debug", [False, True])
def test_torch_makes_its_group_of_what_is_constructed(
    debug: bool, alone: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = []

    def connect(construct: Callable[[], Any]) -> Any:
        made.append(construct())
        return made[-1]

    if debug:  # torch wraps the communicator then, and looks what it is
        monkeypatch.setattr(distributed_c10d, "get_debug_level", lambda: dist.DebugLevel.DETAIL)
        monkeypatch.setattr(distributed_c10d, "_create_process_group_wrapper", lambda wrapped_pg, **_: wrapped_pg)
    with called_by(connect):
        group = dist.new_group([0])
    assert len(made) == 1
    assert type(made[0]) is dist.ProcessGroupGloo
    given = torch.ones(2)
    dist.all_reduce(given, group=group)
    assert given.tolist() == [1, 1]
    assert distributed_c10d.ProcessGroupGloo is dist.ProcessGroupGloo


def test_a_group_whose_peer_never_comes_is_let_go_when_the_generation_breaks() -> None:
    generation = Generation(3)
    breaker = threading.Thread(target=generation.breaks)
    with called_by(functools.partial(connected, generation)):
        breaker.start()
        with pytest.raises(RuntimeError, match="generation 3 was broken"):
            distributed_c10d.ProcessGroupGloo(dist.HashStore(), 0, 2, HALF_AN_HOUR)
    breaker.join()


def test_other_threads_construct_as_ever() -> None:
    def refuse(construct: Callable[[], Any]) -> Any:
        raise AssertionError("this is another thread")

    made: list[Any] = []

    def construct() -> None:
        made.append(distributed_c10d.ProcessGroupGloo(dist.HashStore(), 0, 1, HALF_AN_HOUR))

    with called_by(refuse):
        other = threading.Thread(target=construct)
        other.start()
        other.join()
    assert type(made[0]) is dist.ProcessGroupGloo


def test_the_last_one_to_leave_puts_it_back() -> None:
    with called_by(lambda construct: construct()):
        with called_by(lambda construct: "inner"):
            assert distributed_c10d.ProcessGroupGloo(dist.HashStore(), 0, 1) == "inner"
        assert isinstance(
            distributed_c10d.ProcessGroupGloo(dist.HashStore(), 0, 1, HALF_AN_HOUR), dist.ProcessGroupGloo
        )
        assert distributed_c10d.ProcessGroupGloo is not dist.ProcessGroupGloo
    assert distributed_c10d.ProcessGroupGloo is dist.ProcessGroupGloo
