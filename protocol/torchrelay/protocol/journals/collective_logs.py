"""The collective logs of several ranks in one message: a rank that catches up needs those of all members of its groups.

What a log holds is the shim's affair. Framing: of each log its length in 8 bytes, little-endian, then its bytes.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable

from torchrelay.protocol.errors import FrameError

_LENGTH = struct.Struct("<q")


def join(logs: Iterable[bytes]) -> bytes:
    return b"".join(_LENGTH.pack(len(log)) + log for log in logs)


def split(joined: bytes) -> list[bytes]:
    """Split what `join` has made. Raises FrameError for anything else."""
    logs = []
    at = 0
    while at < len(joined):
        if at + _LENGTH.size > len(joined):
            raise FrameError("the collective logs end within a length")
        (size,) = _LENGTH.unpack_from(joined, at)
        at += _LENGTH.size
        if size < 0 or at + size > len(joined):
            raise FrameError("the collective logs end within a log")
        logs.append(joined[at : at + size])
        at += size
    return logs
