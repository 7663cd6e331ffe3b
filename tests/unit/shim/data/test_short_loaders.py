"""Loaders that a check cuts, and what it notes of them."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader, IterableDataset, TensorDataset

from torchrelay.shim.capture.iteration.loader_order import LoaderIter
from torchrelay.shim.data import short_loaders
from torchrelay.shim.observe.check_record import EPOCHS, STEPS_OF_THE_NEXT_EPOCH, CheckProgress

BATCHES = 3
DATA = TensorDataset(torch.arange(40).float())


@pytest.fixture
def cut(monkeypatch: pytest.MonkeyPatch) -> Callable[[CheckProgress | None], None]:
    """Cuts loaders until the test is over."""
    for owner, names in ((LoaderIter, ("_next_index", "_reset", "__next__")), (DataLoader, ("__len__",))):
        for name in names:
            monkeypatch.setattr(owner, name, getattr(owner, name))

    def install(seen: CheckProgress | None = None) -> None:
        if seen is None:
            short_loaders.install(BATCHES, lambda iterator: None, lambda iterator: None)
        else:
            short_loaders.install(BATCHES, seen._began, seen._ended)

    return install


@pytest.mark.parametrize("workers", [0, 2])
def test_a_loader_gives_few_batches_in_each_epoch_and_says_so(
    cut: Callable[[CheckProgress | None], None], workers: int
) -> None:
    cut(None)
    loader = DataLoader(DATA, batch_size=2, num_workers=workers, persistent_workers=workers > 0)
    assert len(loader) == BATCHES
    for _ in range(2):
        assert [batch[0].tolist() for batch in loader] == [[0, 1], [2, 3], [4, 5]]


def test_a_loader_with_fewer_batches_stays_as_it_is(cut: Callable[[CheckProgress | None], None]) -> None:
    cut(None)
    loader = DataLoader(DATA, batch_size=20)
    assert len(loader) == len(list(loader)) == 2


class Stream(IterableDataset[int]):
    def __iter__(self) -> Iterator[int]:
        yield from range(1000)


def test_a_stream_without_a_length_ends_too(cut: Callable[[CheckProgress | None], None]) -> None:
    cut(None)
    loader = DataLoader(Stream(), batch_size=2)
    assert len(list(loader)) == BATCHES
    with pytest.raises(TypeError):
        len(loader)


def noted(path: Path) -> list[tuple[str, str]]:
    records: list[dict[str, Any]] = [json.loads(line) for line in path.read_text().splitlines()]
    assert all(record["file"] == __file__ and record["line"] > 0 for record in records)
    return [(record["kind"], record["text"]) for record in records]


def step(seen: CheckProgress) -> None:
    seen._stepped(None, (), {})


def test_a_loader_is_an_epoch_if_steps_were_made_and_an_evaluation_if_not(
    cut: Callable[[CheckProgress | None], None], tmp_path: Path
) -> None:
    seen = CheckProgress(tmp_path / "seen", BATCHES)
    cut(seen)
    for _ in range(2):
        for _ in DataLoader(DATA):
            step(seen)
        for _ in DataLoader(DATA):
            pass
    assert noted(tmp_path / "seen") == [("epoch", "3 batches, 3 optimizer steps"), ("evaluation", "3 batches")]


def test_what_is_drawn_before_the_first_step_is_set_up(
    cut: Callable[[CheckProgress | None], None], tmp_path: Path
) -> None:
    seen = CheckProgress(tmp_path / "seen", BATCHES)
    cut(seen)
    list(DataLoader(DATA))
    assert noted(tmp_path / "seen") == []


def test_a_check_waits_for_an_epochs_end_and_the_first_steps_of_the_next_one(
    cut: Callable[[CheckProgress | None], None], tmp_path: Path
) -> None:
    seen = CheckProgress(tmp_path / "seen", BATCHES)
    cut(seen)
    enough = []
    for _ in range(3):
        for _ in DataLoader(DATA):
            step(seen)
            enough.append(seen.is_enough(len(enough) + 1, 2))
    assert enough.index(True) == BATCHES + STEPS_OF_THE_NEXT_EPOCH - 1


def test_a_check_does_not_wait_where_no_loader_gives_the_batches(tmp_path: Path) -> None:
    seen = CheckProgress(tmp_path / "seen", BATCHES)
    assert not seen.is_enough(4, 5)
    assert seen.is_enough(5, 5)


def test_a_check_does_not_wait_for_ever(cut: Callable[[CheckProgress | None], None], tmp_path: Path) -> None:
    seen = CheckProgress(tmp_path / "seen", BATCHES)
    cut(seen)
    next(iter(DataLoader(DATA)))
    assert not seen.is_enough(5 + EPOCHS * BATCHES - 1, 5)
    assert seen.is_enough(5 + EPOCHS * BATCHES, 5)
