from __future__ import annotations

from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from torchrelay.shim.capture.values import small
from torchrelay.shim.data.replayed_item import ReplayedItem
from torchrelay.shim.tensors.tensor_versions import version_of, versions_of, writes_between


def inference_tensor() -> torch.Tensor:
    with torch.inference_mode():
        return torch.arange(6.0)


def test_the_difference_of_two_versions_is_the_number_of_writes() -> None:
    tensor = torch.zeros(3)
    before = version_of(tensor)
    tensor.add_(1).mul_(2)
    assert writes_between(before, version_of(tensor), -9) == 2
    assert versions_of([tensor, tensor]) == [version_of(tensor)] * 2


def test_a_tensor_of_inference_mode_is_known_by_its_content() -> None:
    tensor = inference_tensor()
    before, same = version_of(tensor), version_of(inference_tensor())
    with torch.inference_mode():
        tensor[2] = 7
    assert before == same != version_of(tensor)
    assert versions_of([torch.zeros(1), tensor]) == [0, version_of(tensor)]
    assert writes_between(before, version_of(tensor), -9) == -9
    assert writes_between(before, before, -9) == 0


def test_looking_at_content_within_inference_mode_leaves_nothing_behind_that_fails_outside() -> None:
    with torch.inference_mode():
        version_of(torch.arange(10_000.0))
    outside = inference_tensor()
    assert version_of(outside) == version_of(outside)


def test_a_tensor_whose_content_cannot_be_read_is_never_taken_for_unchanged() -> None:
    with torch.inference_mode():
        sparse = torch.eye(3).to_sparse()
    assert version_of(sparse) != version_of(sparse)


def test_classes_and_modes_of_the_script_do_not_hear_of_the_question() -> None:
    asked: list[Any] = []

    class Curious(torch.Tensor):
        @classmethod
        def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            asked.append(func)
            raise ValueError("asked")

    class Mode(TorchFunctionMode):
        def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            asked.append(func)
            return func(*args, **(kwargs or {}))

    curious, plain = torch.zeros(2).as_subclass(Curious), torch.zeros(2)
    with Mode():
        assert versions_of([curious, plain]) == [0, 0]
        assert version_of(curious) == 0
    assert asked == []


def test_a_small_tensor_of_inference_mode_is_put_back() -> None:
    tensor = inference_tensor()
    value = small.take(tensor)
    with torch.inference_mode():
        tensor.zero_()
    small.put(value, tensor)
    assert tensor.tolist() == [0, 1, 2, 3, 4, 5]


def test_items_that_are_drawn_in_inference_mode_are_noted_without_their_content() -> None:
    with torch.inference_mode():
        item = [torch.arange(3.0)]
        assert ReplayedItem.note(item).tensors == []
    noted = ReplayedItem.note([inference_tensor()])
    noted.check(lambda obj: False)
