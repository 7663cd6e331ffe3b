"""A journal in parts, in one file: what is in the file already is not written again.

Standard library only. Of thousands of objects that a boundary's journal describes hardly any have changed since the file was last
written, so the journal comes in parts, and a part that is the same object as before stays where it is. Behind the header
(number, count of the parts, CRC-32) is a table with place, length and CRC-32 of each part; the header's CRC is that of the table.
The writer clears the header first and writes it last, so what a killed writer left half done reads as absent.
"""

from __future__ import annotations

import mmap
import os
import struct
import zlib
from collections.abc import Sequence
from pathlib import Path

from torchrelay.protocol.errors import JournalError
from torchrelay.protocol.machine.private import open_below

_HEADER = struct.Struct("<8sqII")
_MAGIC = b"TRBLKS01"
_ENTRY = struct.Struct("<QII")
_MOST_PARTS = 1 << 20
_NO_PART = object()


def map_file(file: int, size: int) -> mmap.mmap:
    """Map a file of `size` bytes into memory. Raises JournalError if there is no room."""
    # After ftruncate on a full memory file system the first write to the map would end the process with SIGBUS.
    try:
        os.posix_fallocate(file, 0, size)
        return mmap.mmap(file, size)
    except OSError as e:
        raise JournalError(f"no room for a journal of {size} bytes in shared memory: {e}") from e


class Checksums:
    """Checksums of parts. Each part is summed up only once, also if several files get it in turn."""

    def __init__(self) -> None:
        self._parts: list[bytes] = []
        self._sums: list[int] = []

    def of(self, parts: Sequence[bytes]) -> list[int]:
        known = self._parts
        sums = self._sums
        found = [
            sums[place] if place < len(known) and known[place] is part else zlib.crc32(part)
            for place, part in enumerate(parts)
        ]
        self._parts = list(parts)
        self._sums = found
        return found


class BlockSlot:
    """The writer's side of one file."""

    def __init__(self, path: Path, root: Path, checksums: Checksums) -> None:
        self._file = open_below(root, path)
        self._checksums = checksums
        self._map: mmap.mmap | None = None
        self._has: list[object] = []
        """The parts that are in the file; bytes, kept alive so that another one is never taken for them."""
        self._places: list[tuple[int, int]] = []
        """Where each of them begins, and how many bytes have room there."""
        self._table = bytearray()
        self._end = 0

    def write(self, number: int, parts: Sequence[bytes]) -> None:
        """Write the parts that have changed.

        Raises JournalError if shared memory has no room; what was in the file is whole then.
        """
        sums = self._checksums.of(parts)
        if self._map is None or not len(parts) == len(self._has) == len(self._places):
            self._lay_out(parts)
        changed = [place for place, part in enumerate(parts) if self._has[place] is not part]
        if not self._fit(changed, parts):
            self._lay_out(parts)
            changed = list(range(len(parts)))
        assert self._map is not None
        self._map[: _HEADER.size] = bytes(_HEADER.size)
        for place in changed:
            part, (begin, _) = parts[place], self._places[place]
            self._has[place] = _NO_PART  # should the write be broken off
            self._map[begin : begin + len(part)] = part
            self._has[place] = part
            _ENTRY.pack_into(self._table, place * _ENTRY.size, begin, len(part), sums[place])
        self._map[_HEADER.size : _HEADER.size + len(self._table)] = self._table
        header = _HEADER.pack(_MAGIC, number, len(parts), _sum_of_table(number, self._table))
        self._map[: _HEADER.size] = header

    def _fit(self, changed: Sequence[int], parts: Sequence[bytes]) -> bool:
        """Give another place to parts that have grown. Return whether the file has room for all of them."""
        assert self._map is not None
        for place in changed:
            size = len(parts[place])
            if size > self._places[place][1]:
                room = _with_spare(size)
                if self._end + room > len(self._map):
                    return False
                self._places[place] = self._end, room
                self._end += room
        return True

    def _lay_out(self, parts: Sequence[bytes]) -> None:
        """Give all parts new places. The file holds no part after that."""
        self._has = []  # should this be broken off
        begin = _HEADER.size + len(parts) * _ENTRY.size
        places = []
        for part in parts:
            places.append((begin, _with_spare(len(part))))
            begin += places[-1][1]
        need = begin + begin // 4
        if self._map is None or len(self._map) < need:
            larger = map_file(self._file, max(need, mmap.PAGESIZE))
            if self._map is not None:
                self._map.close()
            self._map = larger
        self._places = places
        self._end = begin
        self._table = bytearray(len(parts) * _ENTRY.size)
        self._has = [_NO_PART] * len(parts)

    @property
    def allocated_bytes(self) -> int:
        return len(self._map) if self._map is not None else 0

    def close(self) -> None:
        if self._map is not None:
            self._map.close()
        os.close(self._file)


def read_blocks(path: Path) -> tuple[int, bytes] | None:
    """Return the number, and all parts joined; None if the file holds no whole journal. Raises OSError."""
    try:
        with open(path, "rb") as f:
            data = f.read()
    except FileNotFoundError:
        return None
    if len(data) < _HEADER.size:
        return None
    magic, number, count, crc = _HEADER.unpack_from(data)
    table = data[_HEADER.size : _HEADER.size + count * _ENTRY.size]
    if magic != _MAGIC or count > _MOST_PARTS or len(table) != count * _ENTRY.size:
        return None
    if _sum_of_table(number, table) != crc:
        return None
    parts = []
    for begin, length, part_crc in _ENTRY.iter_unpack(table):
        part = data[begin : begin + length]
        if len(part) != length or zlib.crc32(part) != part_crc:
            return None
        parts.append(part)
    return number, b"".join(parts)


def _sum_of_table(number: int, table: bytes | bytearray) -> int:
    return zlib.crc32(table, zlib.crc32(number.to_bytes(8, "little", signed=True)))


def _with_spare(size_bytes: int) -> int:
    """Add some room, so that a part that grows a little can stay in its place."""
    return size_bytes + size_bytes // 8 + 64
