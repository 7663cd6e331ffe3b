"""Comparing lists by identity; seen on CPython 3.10 to 3.13."""

from __future__ import annotations

import sys

from torchrelay.shim.adapters.raw_memory import list_pointers


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


def test_lists_that_begin_alike_do_so_by_identity() -> None:
    for alike in (list_pointers._fast_alike, list_pointers._slow_alike):
        items = [object() for _ in range(1000)]
        assert alike(items, [*items, 1], 1000)
        assert not alike(items, items, 1001)
        assert not alike(items, [*items[:-1], object()], 1000)
        assert alike(items, [*items[:-1], object()], 999)
        assert alike([], [], 0)
        assert not alike([float("1.5")], [float("1.5")], 1)
