"""Journals in parts: each one that is read is whole, whatever was changed in it and wherever its writer was killed."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from torchrelay.protocol.errors import JournalError
from torchrelay.protocol.journals.blocks import BlockSlot, Checksums, read_blocks


def test_any_changes_of_any_parts_are_read_back(tmp_path: Path) -> None:
    chance = random.Random(3)
    checksums = Checksums()
    slots = [BlockSlot(tmp_path / str(n), tmp_path, checksums) for n in range(3)]
    parts = [bytes(chance.randrange(3000)) for _ in range(20)]
    for number in range(400):
        for _ in range(chance.randrange(4)):
            parts[chance.randrange(len(parts))] = chance.randbytes(chance.choice([0, 10, 3000, 3300, 20_000]))
        if chance.random() < 0.05:
            parts.append(b"one more")
        if chance.random() < 0.05:
            parts = parts[: 1 + chance.randrange(len(parts))]
        slots[number % 3].write(number, parts)
        assert read_blocks(tmp_path / str(number % 3)) == (number, b"".join(parts))
    for slot in slots:
        slot.close()


class Writes:
    """Stands in for the map, and counts the bytes that are written."""

    def __init__(self, real: object) -> None:
        self.real, self.bytes = real, 0

    def __len__(self) -> int:
        return len(self.real)  # type: ignore[arg-type]

    def __setitem__(self, where: slice, data: bytes) -> None:
        self.bytes += len(data)
        self.real[where] = data  # type: ignore[index]


def test_what_is_there_already_is_not_written_again(tmp_path: Path) -> None:
    slot = BlockSlot(tmp_path / "slot", tmp_path, Checksums())
    parts = [b"head", *(bytes(20_000) for _ in range(50))]
    slot.write(1, parts)
    slot._map = counted = Writes(slot._map)  # type: ignore[assignment]
    slot.write(2, [b"another head", *parts[1:]])
    assert counted.bytes < 2000
    slot.write(3, [b"another head", *parts[1:30], bytes(20_000), *parts[31:]])
    assert 20_000 < counted.bytes < 24_000
    assert read_blocks(tmp_path / "slot") == (3, b"another head" + bytes(20_000) * 50)


def test_a_part_is_summed_up_once_for_all_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    checksums = Checksums()
    parts = [b"a" * 100, b"b" * 100]
    first = checksums.of(parts)
    monkeypatch.setattr("zlib.crc32", lambda *_: pytest.fail("summed up again"))
    assert checksums.of([*parts]) == first


def test_each_wrong_bit_makes_it_absent(tmp_path: Path) -> None:
    path = tmp_path / "slot"
    slot = BlockSlot(path, tmp_path, Checksums())
    slot.write(5, [b"first part", b"second part"])
    slot.close()
    whole = path.read_bytes()
    found = [i for i in range(len(whole)) if _with_wrong_bit(path, whole, i) != (5, b"first partsecond part")]
    covered = 24 + 2 * 16 + len(b"first part") + len(b"second part")
    assert len(found) == covered
    for place in found:
        assert _with_wrong_bit(path, whole, place) is None


def _with_wrong_bit(path: Path, whole: bytes, place: int) -> tuple[int, bytes] | None:
    path.write_bytes(whole[:place] + bytes([whole[place] ^ 1]) + whole[place + 1 :])
    return read_blocks(path)


@pytest.mark.parametrize("size", [0, 10, 31, 40, 100])
def test_a_truncated_file_is_absent(tmp_path: Path, size: int) -> None:
    path = tmp_path / "slot"
    slot = BlockSlot(path, tmp_path, Checksums())
    slot.write(5, [b"first part" * 20, b"second part"])
    slot.close()
    path.write_bytes(path.read_bytes()[:size])
    assert read_blocks(path) is None
    assert read_blocks(tmp_path / "none") is None


def test_no_room_leaves_what_was_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    slot = BlockSlot(tmp_path / "slot", tmp_path, Checksums())
    parts = [b"a", b"b"]
    slot.write(0, parts)

    def full(_file: int, _offset: int, _size: int) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(os, "posix_fallocate", full)
        with pytest.raises(JournalError, match="no room"):
            slot.write(3, [b"a", bytes(1 << 20), b"c"])
    assert read_blocks(tmp_path / "slot") == (0, b"ab")
    slot.write(6, [b"c", parts[1]])
    assert read_blocks(tmp_path / "slot") == (6, b"cb")


KILLED = """
import os, sys
from pathlib import Path
from torchrelay.protocol.journals.blocks import BlockSlot, Checksums

class DyingMap:
    # Passes writes on; the process dies by SIGKILL in the middle of the chosen one.
    def __init__(self, real, dies_at):
        self.real, self.left = real, dies_at
    def __len__(self):
        return len(self.real)
    def __setitem__(self, where, data):
        self.left -= 1
        if self.left < 0:
            half = len(data) // 2
            self.real[where.start or 0 : (where.start or 0) + half] = data[:half]
            os.kill(os.getpid(), 9)
        self.real[where] = data

slot = BlockSlot(Path(sys.argv[1]), Path(sys.argv[1]).parent, Checksums())
parts = [b"head 1", *(b"part %d" % n * 99 for n in range(5))]
slot.write(1, parts)
slot._map = DyingMap(slot._map, int(sys.argv[2]))
parts[0], parts[2], parts[4] = b"head 2", b"changed" * 99, b"grown" * 110
slot.write(2, parts)
print("written")
"""


@pytest.mark.parametrize("write", range(7))
def test_a_writer_killed_at_any_instant_leaves_no_half_journal(tmp_path: Path, write: int) -> None:
    """In turn: the header is cleared, three parts are written, the table, the header; and a seventh write does not happen."""
    done = subprocess.run(
        [sys.executable, "-c", KILLED, str(tmp_path / "slot"), str(write)], capture_output=True, check=False
    )
    found = read_blocks(tmp_path / "slot")
    if write == 6:
        assert done.stdout == b"written\n"
        assert found is not None
        assert found[0] == 2
        return
    assert done.returncode == -signal.SIGKILL
    assert found is None or (write == 0 and found[0] == 1)
