"""A data loader whose items depend on the process's generator, and the hooks that watch it."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader, Dataset

from support.failing_guard import FAILING
from torchrelay.shim.data import data_loader
from torchrelay.shim.data.iterator_replay import IteratorReplay


@pytest.fixture
def draws(monkeypatch: pytest.MonkeyPatch) -> IteratorReplay:
    """With the hooks in place, for a rank that has reached its first boundary."""
    for name in ("__init__", "__next__", "_reset", "_next_index"):
        monkeypatch.setattr(data_loader.LoaderIter, name, getattr(data_loader.LoaderIter, name))
    draws = IteratorReplay()
    data_loader.install(draws, lambda: True, FAILING)
    draws.live = True
    draws.at_boundary()
    return draws


class Noisy(Dataset[torch.Tensor]):
    """Items depend on the process-wide generator, as augmentation does."""

    def __len__(self) -> int:
        return 12

    def __getitem__(self, index: int) -> torch.Tensor:
        return index + torch.rand(1)


def loader_of(**options: Any) -> DataLoader[Any]:
    return DataLoader(Noisy(), batch_size=2, **options)


def values(batches: list[torch.Tensor]) -> list[list[float]]:
    return [batch.flatten().tolist() for batch in batches]
