"""What an iterator has yielded, given again: nothing of the script's own hears of that."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from torchrelay.shim.capture.values import item_mark
from torchrelay.shim.capture.values.device_reads import DeviceReads
from torchrelay.shim.data.replayed_item import ReplayedItem


class Counting(torch.Tensor):
    calls = 0

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        Counting.calls += 1
        return super().__torch_function__(func, types, args, kwargs or {})


@pytest.fixture
def image() -> Any:
    made = torch.arange(6.0).as_subclass(Counting)
    Counting.calls = 0
    return made


@pytest.mark.parametrize("form", [lambda image: [image], lambda image: (image, 1), lambda image: {"image": image}])
def test_a_class_of_tensors_does_not_hear_that_its_batch_is_noted_and_given_again(image: Any, form: Any) -> None:
    item = form(image)
    drawn = ReplayedItem.note(item, copy=True)
    with torch._C.DisableTorchFunction():
        image.add_(1.0)
    drawn.check(lambda obj: False)
    drawn.put_back(lambda obj: False)
    drawn.again(lambda obj: False)
    item_mark.mark_of(item)
    assert Counting.calls == 0
    assert torch.equal(image.as_subclass(torch.Tensor), torch.arange(6.0))


def test_nor_that_small_tensors_are_read(image: Any) -> None:
    reads = DeviceReads()
    with reads.ahead([image]):
        assert reads.take(image) == reads.take(image)
        assert reads.take_if_small(image, 1024) is not None
    assert Counting.calls == 0
