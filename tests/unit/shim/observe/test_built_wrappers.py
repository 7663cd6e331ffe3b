from __future__ import annotations

import sys
from collections.abc import Iterator

import pytest
import torch
import torch.distributed as dist
from support.host_state import take
from torch.nn.parallel import DistributedDataParallel

from torchrelay.protocol.names import BARS
from torchrelay.shim.instrument.activation import Activation
from torchrelay.shim.observe import built_wrappers
from torchrelay.shim.observe.built_wrappers import BuiltWrappers


@pytest.fixture
def wrapped() -> Iterator[DistributedDataParallel]:
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield DistributedDataParallel(torch.nn.Linear(2, 2))
    dist.destroy_process_group()


def loop(heads: int) -> Activation:
    made = Activation(f"train.py:{heads}", iter(()), 1, None)
    made.heads = heads
    return made


def lacking(built: BuiltWrappers, wrapped: DistributedDataParallel, *stack: Activation) -> int:
    return len(built.lacking(take({"model": wrapped}), stack[-1], stack))


def test_a_wrapper_of_set_up_or_of_an_outer_loops_present_iteration_is_built_in_a_new_process_too(
    wrapped: DistributedDataParallel,
) -> None:
    built, folds, over, training = BuiltWrappers(), loop(2), loop(1), loop(1)
    built.add(wrapped, sys._getframe(), [])
    assert lacking(built, wrapped, folds, training) == 0
    built.add(wrapped, sys._getframe(), [folds, over])  # a loop of set-up within the fold
    assert lacking(built, wrapped, folds, training) == 0
    folds.heads = 3
    assert lacking(built, wrapped, folds, training) == 1


def test_a_wrapper_that_the_training_loop_has_built_is_lacking_from_the_next_boundary_on(
    wrapped: DistributedDataParallel,
) -> None:
    built, training = BuiltWrappers(), loop(1)
    built.add(wrapped, sys._getframe(), [training])
    assert lacking(built, wrapped, training) == 1
    assert built.lacking(take({}), training, [training]) == []  # nothing leads to it any more
    (gap,) = built_wrappers.gaps(built.lacking(take({"model": wrapped}), training, [training]) * 2)
    assert (gap.effect, gap.file) == (BARS, __file__)
