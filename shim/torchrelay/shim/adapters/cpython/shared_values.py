"""Read and write numbers in memory that other processes may share: `multiprocessing.Value`, `Array`, and those of ctypes.

Leans on `SynchronizedBase.get_obj` and on `ctypes._SimpleCData._type_`. Seen on CPython 3.11.
"""

from __future__ import annotations

import ctypes
import sys
from typing import Any

MOST_BYTES = 64 << 10
"""A larger value holds data."""
_NUMBERS = frozenset("cbBhHiIlLqQfdg?u")
"""Types of ctypes that are no addresses."""
_SIMPLE: Any = ctypes.c_int.__mro__[1]
_SHARED = "multiprocessing.sharedctypes"


def is_shared_value(cls: type) -> bool:
    """Return whether the class's instances are such numbers, or stand for some together with a lock."""
    if issubclass(cls, (_SIMPLE, ctypes.Array)):
        return _is_number(cls)
    base = getattr(sys.modules.get(_SHARED), "SynchronizedBase", None)
    return isinstance(base, type) and issubclass(cls, base)


def _is_number(cls: Any) -> bool:
    while issubclass(cls, ctypes.Array):
        cls = cls._type_
    return issubclass(cls, _SIMPLE) and cls._type_ in _NUMBERS


def _memory(value: Any) -> memoryview | None:
    raw = value.get_obj() if hasattr(value, "get_obj") else value
    if not _is_number(type(raw)) or ctypes.sizeof(raw) > MOST_BYTES:
        return None
    return memoryview(raw).cast("B")


def content(value: Any) -> bytes:
    """Return the bytes of the value; nothing where it is large, or holds no numbers."""
    memory = _memory(value)
    return b"" if memory is None else bytes(memory)


def put(value: Any, data: bytes) -> None:
    """Write what `content` has returned of a like value. Raises ValueError where that does not fit."""
    memory = _memory(value)
    if memory is not None:
        memory[:] = data
