"""A tensor whose storage has let go of its memory has no content: nobody may read there, or the process ends."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from support.host_state import carry, take

from torchrelay.shim.adapters.tensors.storages import is_freed
from torchrelay.shim.capture.models.modules import ModuleTrees
from torchrelay.shim.capture.state.change_detection import WalkAnew
from torchrelay.shim.capture.walks.rewalk import Rewalk

SIZES = pytest.mark.parametrize("size", [8, 100_000])


def freed(size: int) -> torch.Tensor:
    made = torch.ones(size)
    made.untyped_storage().resize_(0)
    return made


@SIZES
def test_it_is_none_of_the_tensors_that_are_copied_or_sent(size: int) -> None:
    assert take({"whole": freed(size)}).large == {}


@SIZES
def test_one_that_has_memory_again_is_seen(size: int) -> None:
    trees = ModuleTrees()
    whole = freed(size)
    namespace = {"whole": whole}
    state = take(namespace, trees)
    Rewalk(trees, state, at_gate=False).run([], {"script": namespace})
    whole.untyped_storage().resize_(size * 4)
    with pytest.raises(WalkAnew):
        Rewalk(trees, state, at_gate=False).run([], {"script": namespace})


def test_one_of_set_up_that_training_has_given_memory_has_some_in_a_new_process() -> None:
    target = {"whole": freed(100_000)}
    there = target["whole"]
    carry({"whole": torch.ones(100_000)}, target)
    assert target["whole"] is there
    assert not is_freed(there)
    assert there.untyped_storage().nbytes() == 400_000


@SIZES
def test_a_new_process_has_one_without_memory_as_well(size: int) -> None:
    target: dict[str, Any] = {"whole": torch.ones(size), "made": None}
    there = target["whole"]
    carry({"whole": freed(size), "made": freed(size)}, target)
    assert target["whole"] is there
    assert is_freed(there)
    assert is_freed(target["made"])
