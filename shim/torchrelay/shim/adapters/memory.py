"""Bytes at an address of this process, for what is read in each step: `ctypes.string_at` is a call through libffi, this is none."""

from __future__ import annotations

import ctypes
from typing import Any


def view(address: int, size_bytes: int) -> Any:
    """What is there at any time is its `raw`. Keeps nothing alive."""
    return (ctypes.c_char * size_bytes).from_address(address)


def read(address: int, size_bytes: int) -> bytes:
    """A copy. 0 bytes may be anywhere."""
    return (ctypes.c_char * size_bytes).from_address(address).raw if size_bytes else b""
