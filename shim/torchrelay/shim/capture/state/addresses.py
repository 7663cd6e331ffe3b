"""Tell numbers of the script that are addresses of objects, as `id` gives them: in another process the objects lie elsewhere."""

from __future__ import annotations

from typing import Any

FIRST = 1 << 32
"""Objects of Python lie above it: they are in mapped memory, or behind a program that is loaded anywhere."""

_LAST = 1 << 48
_ALIGNED = 15


def may_be_one(number: int) -> bool:
    """Return whether an object could lie there. Few other numbers of a script are of this size, and a multiple of 16."""
    return FIRST <= number < _LAST and not number & _ALIGNED


def is_one(value: Any) -> bool:
    return type(value) is int and may_be_one(value)
