from __future__ import annotations

import fcntl
import os
import select
from collections.abc import Iterator

import pytest

from torchrelay.protocol.transport.readable import is_readable

ABOVE_SELECT = 1024


@pytest.fixture
def pipe() -> Iterator[tuple[int, int]]:
    """Its reading end has a free number that `select.select` does not take."""
    reading, writing = os.pipe()
    high = fcntl.fcntl(reading, fcntl.F_DUPFD_CLOEXEC, ABOVE_SELECT)
    os.close(reading)
    yield high, writing
    os.close(high)


def test_what_is_written_and_an_end_can_be_read(pipe: tuple[int, int]) -> None:
    reading, writing = pipe
    with pytest.raises(ValueError, match="out of range"):
        select.select([reading], [], [], 0)
    assert not is_readable(reading)
    assert not is_readable(reading, within_s=0.01)
    os.write(writing, b"1")
    assert is_readable(reading, within_s=60.0)
    os.read(reading, 1)
    assert not is_readable(reading)
    os.close(writing)
    assert is_readable(reading)
