from __future__ import annotations

import collections
from typing import Any

import pytest

from torchrelay.shim.capture.values.base_types import length_of, put_dict_items


@pytest.mark.parametrize("cls", [dict, collections.OrderedDict])
def test_whoever_goes_through_a_dict_goes_on_where_only_values_are_put(cls: Any) -> None:
    there = cls(a=1, b=2, c=3)
    values = iter(there.values())
    assert next(values) == 1
    put_dict_items(there, {"a": 4, "b": 5, "c": 3})
    assert [*values] == [5, 3]


@pytest.mark.parametrize("cls", [dict, collections.OrderedDict])
def test_items_come_in_the_order_that_they_are_given_in(cls: Any) -> None:
    there = cls(a=1, b=2, c=3)
    put_dict_items(there, {"c": 1, "d": 2})
    assert [*there.items()] == [("c", 1), ("d", 2)]


def test_the_length_of_a_container_is_what_it_holds_whatever_its_class_says() -> None:
    class Few(list[int]):
        def __len__(self) -> int:
            raise NotImplementedError

    assert [length_of(each) for each in (Few([1, 2]), {1: 2}, (1, 2, 3), frozenset({1}), b"ab")] == [2, 1, 3, 1, 2]
