"""Numbers in shared memory are read and written as bytes; addresses are not touched."""

from __future__ import annotations

import ctypes
import multiprocessing
from typing import Any

import pytest

from torchrelay.shim.adapters.cpython import shared_values


class _Pair(ctypes.Structure):
    _fields_ = (("a", ctypes.c_int), ("b", ctypes.c_int))


@pytest.mark.parametrize(
    ("make", "change", "read"),
    [
        (lambda: multiprocessing.Value("i", 7), lambda v: setattr(v, "value", 9), lambda v: v.value),
        (lambda: multiprocessing.Value("d", 0.5, lock=False), lambda v: setattr(v, "value", 2.0), lambda v: v.value),
        (lambda: multiprocessing.Array("l", [1, 2]), lambda v: v.__setitem__(1, 5), lambda v: [*v]),
        (lambda: ctypes.c_bool(True), lambda v: setattr(v, "value", False), lambda v: v.value),
    ],
)
def test_what_was_read_is_put_back(make: Any, change: Any, read: Any) -> None:
    value = make()
    assert shared_values.is_shared_value(type(value))
    first, data = read(value), shared_values.content(value)
    change(value)
    assert read(value) != first
    shared_values.put(value, data)
    assert read(value) == first


@pytest.mark.parametrize("cls", [ctypes.c_void_p, ctypes.c_char_p, ctypes.py_object, ctypes.c_char_p * 2, _Pair, int])
def test_what_holds_addresses_is_none(cls: type) -> None:
    assert not shared_values.is_shared_value(cls)


def test_large_ones_are_data() -> None:
    large = multiprocessing.RawArray("b", shared_values.MOST_BYTES + 1)
    assert shared_values.content(large) == b""
    shared_values.put(large, b"")


def test_another_size_does_not_fit() -> None:
    with pytest.raises(ValueError, match="structure"):
        shared_values.put(multiprocessing.Value("i", 7), b"12345678")
