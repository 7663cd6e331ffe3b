from __future__ import annotations

import multiprocessing
import random
import threading
import types
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch.utils.data import IterableDataset

from torchrelay.shim.capture.iteration import marks
from torchrelay.shim.script import sites

COUNTS = {"seen": 0}
OWN = random.Random(1)


def counter() -> Callable[[], None]:
    seen = 0

    def count() -> None:
        nonlocal seen
        seen += 1

    return count


COUNT = counter()


def remembering(known: list[int] = []) -> None:  # noqa: B006 - that is what is tried
    known.append(1)


class Stream(IterableDataset[int]):
    """An abstract base class: these have an attribute that cannot be pickled."""

    opened = 0

    def __iter__(self) -> Iterator[int]:
        return iter(range(4))


class Crops:
    """A data set's transform, as they come."""

    def __init__(self) -> None:
        self.scale = lambda x: x * 2
        self.mean = torch.zeros(3)
        self.parts: list[Any] = [types, torch.nn.functional.relu]


def open_another() -> None:
    Stream.opened += 1


@pytest.fixture(autouse=True)
def in_the_script(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sites, "INSTRUMENTED_FILES", {__file__})


@pytest.mark.parametrize(
    "change", [lambda: COUNTS.update(seen=1 + COUNTS["seen"]), OWN.random, COUNT, remembering, open_another]
)
def test_what_the_scripts_variables_lead_to_is_in_their_mark(change: Callable[[], object]) -> None:
    def digests() -> list[bytes]:
        return [mark.digest for mark in marks.of_variables().values()]

    before = digests()
    assert digests() == before
    change()
    assert digests() != before


@pytest.mark.parametrize(
    "change", [lambda d: d.mean.add_(1), lambda d: d.parts.append(2), lambda d: setattr(d, "scale", lambda x: x)]
)
def test_what_is_below_a_data_set_is_in_its_mark(change: Callable[[Any], object]) -> None:
    data = Stream()
    crops = data.crops = Crops()  # type: ignore[attr-defined]  # as scripts do
    before = marks.of_data(data, None)
    assert before is not None
    data.opened = 7  # plain attributes are carried
    assert marks.of_data(data, None) == before
    change(crops)
    assert marks.of_data(data, None) != before


def test_what_cannot_be_pickled_or_is_too_large_has_no_mark() -> None:
    data: Any = Stream()
    data.file = (i for i in range(3))
    assert marks.of_data(data, None) is None
    data.file = bytearray(5 << 20)
    assert marks.of_data(data, None) is None
    data.file = list(range(2000))
    assert marks.of_data(data, None) is not None


def test_numbers_in_shared_memory_are_part_of_a_mark_where_they_are_carried() -> None:
    data: Any = Stream()
    data.number = multiprocessing.Value("i", 0)
    assert marks.of_data(data, None) is None
    before = marks.of_data(data, None, [data.number])
    assert before is not None
    data.number.value = 7
    assert marks.of_data(data, None, [data.number]) == before
    data.many = multiprocessing.Array("d", 10000)
    assert marks.of_data(data, None, [data.number, data.many]) is None


def test_so_are_locks() -> None:
    data: Any = Stream()
    data.locks = [threading.Lock(), threading.RLock(), multiprocessing.Lock()]
    before = marks.of_data(data, None)
    assert before is not None
    data.locks[0] = threading.Lock()
    assert marks.of_data(data, None) != before


def test_long_tables_of_plain_values_are_known_by_their_content() -> None:
    table = {f"word {i}": (i, "x") for i in range(2000)}
    before = marks.as_it_is(table)
    assert before is not None
    assert marks.as_it_is(table) == before
    table["word 7"] = 0, "x"
    assert marks.as_it_is(table) != before
    table["word 7"] = object()  # type: ignore[assignment]  # that is what is tried
    assert marks.as_it_is(table) is None
