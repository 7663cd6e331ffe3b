"""Sequences and tables whose copies share what is not written to: each copy is as a list or a dict of its own would be."""

from __future__ import annotations

import random

import pytest

from torchrelay.shim.capture.state import shared
from torchrelay.shim.capture.state.shared import Pages, Table, copy_of, copy_of_places, page_of

MANY = 3000


def test_short_ones_stay_lists_and_dicts() -> None:
    assert copy_of([1, 2]) == [1, 2]
    assert copy_of_places({1: 2}) == {1: 2}
    assert isinstance(copy_of([*range(MANY)]), Pages)
    assert isinstance(copy_of_places(dict.fromkeys(range(MANY), 0)), Table)


def test_what_is_given_first_is_not_written_to() -> None:
    values, places = [*range(MANY)], dict.fromkeys(range(MANY), 0)
    pages, table = copy_of(values), copy_of_places(places)
    pages[7], table[7] = -1, 5
    assert values[7] == 7
    assert places[7] == 0


def test_any_changes_of_any_copies() -> None:
    chance = random.Random(1)
    pairs = [(copy_of(start := [*range(MANY)]), start)]
    for _ in range(3000):
        pages, plain = chance.choice(pairs)
        match chance.randrange(3):
            case 0:
                pages.append(chance.random())
                plain.append(pages[len(pages) - 1])
            case 1:
                place = chance.randrange(len(plain))
                pages[place] = plain[place] = chance.random()
            case 2 if len(pairs) < 30:
                pairs.append((copy_of(pages), [*plain]))
    for pages, plain in pairs:
        assert [*pages] == plain
        assert [pages[number] for number in range(len(pages))] == plain
        assert [v for n in range(-(-len(plain) // shared.PAGE)) for v in page_of(pages, n)] == plain


def test_pages_that_are_not_written_to_are_not_copied() -> None:
    first = Pages(range(MANY))
    second = first.copy()
    second[300] = -1
    first[0] = -1
    assert [n for n, (a, b) in enumerate(zip(first.pages, second.pages, strict=True)) if a is not b] == [0, 2]


@pytest.mark.parametrize("most_above", [8, 1024])
def test_any_changes_of_any_tables(most_above: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shared, "_MOST_ABOVE", most_above)
    chance = random.Random(2)
    start = {key: key for key in range(MANY)}
    pairs = [(copy_of_places(start), {**start})]
    for _ in range(5000):
        table, plain = chance.choice(pairs)
        key = chance.randrange(2 * MANY)
        match chance.randrange(3):
            case 0:
                table[key] = plain[key] = chance.randrange(99)
            case 1:
                if key in plain:
                    del table[key], plain[key]
                else:
                    with pytest.raises(KeyError):
                        del table[key]
            case 2 if len(pairs) < 20:
                pairs.append((copy_of_places(table), {**plain}))
    for table, plain in pairs:
        assert len(table) == len(plain)
        for key in range(2 * MANY):
            assert (key in table) is (key in plain)
            assert table.get(key) == plain.get(key)
            assert table.get(key, -5) == plain.get(key, -5)
    with pytest.raises(KeyError):
        pairs[0][0][10 * MANY]
