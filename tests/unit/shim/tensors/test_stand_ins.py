"""What stands in for tensors whose content is still to come."""

from __future__ import annotations

import pytest
import torch

from torchrelay.shim.capture.models.bound_tensors import form_of
from torchrelay.shim.tensors.stand_ins import stand_in


@pytest.mark.parametrize("dtype", [torch.int64, torch.uint8, torch.bool, torch.uint4])
def test_whole_numbers_are_indices_of_every_table(dtype: torch.dtype) -> None:
    made = stand_in((3, 2), dtype, "cpu")
    assert (made.shape, made.dtype) == ((3, 2), dtype)
    assert not any(made.untyped_storage().tolist())


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float8_e4m3fn, torch.complex64])
def test_other_numbers_can_be_divided_by(dtype: torch.dtype) -> None:
    made = stand_in((3, 2), dtype, "cpu")
    assert (made.shape, made.dtype) == ((3, 2), dtype)
    assert bool((made.to(torch.complex64) == 1).all())


def test_a_buffer_that_training_has_bound_has_been_written_before_its_content_comes() -> None:
    assert form_of(torch.full((4,), 7)).make().tolist() == [0, 0, 0, 0]
    assert form_of(torch.full((4,), 7.0)).make().tolist() == [1, 1, 1, 1]
