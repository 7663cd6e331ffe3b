"""Comparing lists by identity; seen on CPython 3.10 to 3.13."""

from __future__ import annotations

import sys

from torchrelay.shim.adapters import list_pointers


def test_the_fast_way_agrees_with_the_slow_one() -> None:
    for items in ([], [None], [object() for _ in range(1000)], [*range(100), "a", 2.5]):
        assert list_pointers._fast(items) == list_pointers._slow(items)


def test_this_interpreter_is_one_that_the_fast_way_is_used_on() -> None:
    assert sys.implementation.name == "cpython"
    assert list_pointers.pointers is list_pointers._fast


def test_equal_objects_are_told_apart() -> None:
    one, other = float("1.5"), float("1.5")
    assert list_pointers.pointers([one]) != list_pointers.pointers([other])
    assert len(list_pointers.pointers([one, other])) == 2 * list_pointers.POINTER_BYTES
