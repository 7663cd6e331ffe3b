from __future__ import annotations

import weakref

import pytest
import torch

from torchrelay.shim.adapters.tensors import own_refs
from torchrelay.shim.adapters.tensors.own_refs import OwnRef


@pytest.fixture(autouse=True)
def installed(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("weakref", "swap_tensors"):
        monkeypatch.setattr(torch.utils, name, getattr(torch.utils, name))
    own_refs.install()


def test_tensors_that_only_torchrelay_refers_to_are_swapped_and_count_as_written() -> None:
    first, second = torch.zeros(2), torch.ones(3)
    for _ in range(4):
        second.add_(1)
    there = OwnRef(first)
    torch.utils.swap_tensors(first, second)
    assert there() is first
    assert first.tolist() == [5.0, 5.0, 5.0]
    assert first._version > 4
    assert second._version > 4


def test_a_weak_reference_of_the_script_still_counts() -> None:
    first = torch.zeros(2)
    own, other = OwnRef(first), weakref.ref(first)
    with pytest.raises(RuntimeError, match="weakref"):
        torch.utils.swap_tensors(first, torch.ones(2))
    assert own() is other() is first


def test_tensors_without_references_are_swapped_as_torch_does() -> None:
    first, second = torch.zeros(2), torch.ones(2)
    torch.utils.swap_tensors(first, second)
    assert (first.tolist(), first._version) == ([1.0, 1.0], 0)
