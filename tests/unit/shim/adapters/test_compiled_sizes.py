"""What torch.compile was seen to be called with tells whether it has compiled something for sizes that vary."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch._dynamo import pgo

from torchrelay.shim.adapters import dynamo


@pytest.fixture
def compiled() -> Iterator[Any]:
    torch._dynamo.reset()
    pgo.reset_code_state()
    yield torch.compile(_scaled, backend="eager")
    torch._dynamo.reset()
    pgo.reset_code_state()


def _scaled(x: torch.Tensor, by: float) -> torch.Tensor:
    return x.sin() * by


def test_one_size_is_compiled_as_it_is(compiled: Any) -> None:
    for _ in range(3):
        compiled(torch.ones(4, 8), 0.5)
    assert pgo._CODE_STATE, "torch has looked at what it is called with"
    assert dynamo.compiled_for_all_sizes() == ("", 0, "")


@pytest.mark.parametrize(
    ("x", "by"), [(torch.ones(6, 8), 0.5), (torch.ones(4, 16)[:, ::2], 0.5), (torch.ones(4, 8), 0.25)]
)
def test_another_size_or_number_is_noticed(compiled: Any, x: torch.Tensor, by: float) -> None:
    compiled(torch.ones(4, 8), 0.5)
    compiled(x, by)
    file, _, name = dynamo.compiled_for_all_sizes()
    assert (file, name) == (__file__, "_scaled")
