"""A set yields and pops its elements in the same order once its table was read and put back, here or in another set."""

from __future__ import annotations

import gc
import random
import sys
from typing import Any

import pytest

from torchrelay.shim.adapters.cpython import set_tables


class Named(set[Any]):
    name = "of the script's"


def _used(rng: random.Random, times: int, kind: type[set[Any]] = set) -> set[Any]:
    """Return a set to which much was added, and from which much was taken away."""
    made = kind()
    for _ in range(times):
        if made and rng.random() < 0.4:
            made.pop() if rng.random() < 0.5 else made.discard(rng.choice([*made]))
        else:
            made.add(rng.choice([rng.randint(0, 10**6), f"{rng.random()}", (rng.randint(0, 9), "a"), rng.random()]))
    return made


@pytest.mark.parametrize("kind", [set, Named])
def test_a_table_is_put_into_another_set(kind: type[set[Any]]) -> None:
    rng = random.Random(3)
    for _ in range(100):
        one = _used(rng, rng.randint(0, 400), kind)
        other = _used(rng, rng.randint(0, 100), kind)
        table = set_tables.table_of(one)
        assert table is not None
        assert set_tables.put(other, [*one], table)
        assert [*other] == [*one]
        assert (set_tables.numbers(other), set_tables.table_of(other)) == (set_tables.numbers(one), table)
        for _ in range(100):
            if one and rng.random() < 0.5:
                assert other.pop() == one.pop()
            else:
                added = rng.randint(0, 10**6)
                one.add(added)
                other.add(added)
        assert [*other] == [*one]
    gc.collect()


def test_elements_are_held_once() -> None:
    element = object()
    before = sys.getrefcount(element)
    held = {element}
    table = set_tables.table_of(held)
    assert table is not None
    set_tables.put(held, [element], table)
    assert sys.getrefcount(element) == before + 1
    held.clear()
    assert sys.getrefcount(element) == before


def test_a_table_that_does_not_fit_is_refused() -> None:
    table = set_tables.table_of({1, 2, 3})
    assert table is not None
    assert not set_tables.put(set(), [1, 2], table)
    assert not set_tables.put(set(), [1, 2, 3], table._replace(size=4))
    assert not set_tables.put(set(), [4, 5, 6], table), "they are looked for in other places"


def test_a_large_table_is_left_alone() -> None:
    assert set_tables.table_of({*range(set_tables.LARGEST)}) is None


def test_a_class_of_the_scripts_own_is_asked_nothing() -> None:
    class Own(set):  # type: ignore[type-arg]  # of anything
        def __len__(self) -> int:
            raise AssertionError("asked")

    held, items = Own(), [1, 2, 3]
    table = set_tables.table_of({*items})
    assert table is not None
    assert set_tables.put(held, items, table)
