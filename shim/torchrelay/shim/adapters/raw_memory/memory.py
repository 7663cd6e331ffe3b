"""Read bytes at an address of this process, in each step: `ctypes.string_at` is a call through libffi, and this is not."""

from __future__ import annotations

import ctypes
import functools
from typing import Any


@functools.lru_cache(maxsize=1024)
def _array(size_bytes: int) -> Any:
    """Return the array type, which is kept: ctypes forgets an unused one, and making one takes ten times as long as the rest."""
    return ctypes.c_char * size_bytes


def view(address: int, size_bytes: int) -> Any:
    """Return an object whose `raw` is what the memory holds at any time. Keeps nothing alive."""
    return _array(size_bytes).from_address(address)


def read(address: int, size_bytes: int) -> bytes:
    """Return a copy of the bytes. 0 bytes may be anywhere."""
    data: bytes = _array(size_bytes).from_address(address).raw if size_bytes else b""
    return data


_compare = ctypes.PyDLL(
    None
).memcmp  # it keeps the interpreter's lock: no other thread can move what is compared meanwhile
_compare.argtypes = (ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t)
_compare.restype = ctypes.c_int


def same_bytes(one: int, other: int, size_bytes: int) -> bool:
    """Return whether the same is at two addresses."""
    return bool(_compare(one, other, size_bytes) == 0)


def has_bytes(address: int, data: bytes) -> bool:
    """Return whether these bytes are there."""
    return not data or bool(_compare(address, data, len(data)) == 0)
