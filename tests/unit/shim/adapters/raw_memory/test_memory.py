from __future__ import annotations

import ctypes

from torchrelay.shim.adapters.raw_memory import memory


def test_what_is_read_is_a_copy_and_a_view_follows() -> None:
    content = ctypes.create_string_buffer(b"\0before\0", 8)
    address = ctypes.addressof(content)
    seen, copy = memory.view(address, 8), memory.read(address, 8)
    content[1:7] = b"after!"
    assert copy == b"\0before\0"
    assert seen.raw == b"\0after!\0"


def test_no_bytes_are_read_from_nowhere() -> None:
    assert memory.read(0, 0) == b""
