from __future__ import annotations

import collections
from typing import Any

import pytest

from torchrelay.shim.capture.values.base_types import put_dict_items


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
