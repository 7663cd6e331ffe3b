"""The journal in shared memory: whole records are read, torn ones are absent, a death costs no more than one."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from torchrelay.protocol.errors import JournalError
from torchrelay.protocol.journals import journal
from torchrelay.protocol.journals.journal import JournalWriter, ProgressReader, ProgressRecord, read_journal
from torchrelay.protocol.words.positions import PHASES, RankPhase


@pytest.fixture
def writer(tmp_path: Path) -> Iterator[JournalWriter]:
    made = JournalWriter(tmp_path)
    yield made
    made.close()


@pytest.fixture
def reader(tmp_path: Path) -> Iterator[ProgressReader]:
    made = ProgressReader(tmp_path)
    yield made
    made.close()


def test_the_newest_boundaries_gates_and_the_set_up_are_read(tmp_path: Path, writer: JournalWriter) -> None:
    for boundary in range(7):
        writer.write_boundary(boundary, b"b%d" % boundary)
        writer.write_gate(boundary, b"g%d" % boundary)
    writer.write_set_up(b"recording")
    assert read_journal(tmp_path) == ({4: b"b4", 5: b"b5", 6: b"b6"}, {5: b"g5", 6: b"g6"}, b"recording")


def test_payloads_of_any_size_replace_each_other(tmp_path: Path, writer: JournalWriter) -> None:
    for number, size in enumerate((0, 5_000, 10, 200_000, 0, 199_999)):
        writer.write_boundary(number * 3, bytes([number]) * size)
        assert read_journal(tmp_path)[0] == {number * 3: bytes([number]) * size}


def test_nothing_is_there_before_anything_was_written(tmp_path: Path, reader: ProgressReader) -> None:
    assert reader.read() is None
    assert read_journal(tmp_path) == ({}, {}, b"")


@pytest.mark.parametrize("at", [0, 8, 16, 24, 32, 40])
def test_a_slot_with_one_wrong_bit_is_absent(tmp_path: Path, writer: JournalWriter, at: int) -> None:
    writer.write_boundary(3, b"payload of boundary three")
    writer.write_boundary(4, b"payload of boundary four")
    damage(tmp_path / "boundary-0", at)
    assert read_journal(tmp_path)[0] == {4: b"payload of boundary four"}


def test_a_truncated_slot_is_absent(tmp_path: Path, writer: JournalWriter) -> None:
    writer.write_gate(3, bytes(10_000))
    os.truncate(tmp_path / "gate-1", 5_000)
    assert read_journal(tmp_path)[1] == {}


def test_progress_is_what_was_published_last(writer: JournalWriter, reader: ProgressReader) -> None:
    assert reader.read() == ProgressRecord(0, -1, 0, "set-up", False, 0)
    for count in range(1, 4):
        writer.generation, writer.boundary, writer.gates_passed = 2, 17, 17
        writer.phase, writer.waiting, writer.count = PHASES.index(RankPhase.GATE), 1, count
        writer.publish()
        assert reader.read() == ProgressRecord(2, 17, 17, "gate", True, count)


def test_seconds_in_collectives_add_up_and_are_published(
    writer: JournalWriter, reader: ProgressReader, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock_ns = [0]
    monkeypatch.setattr(journal.time, "monotonic_ns", lambda: clock_ns[0])
    for at_s, on in ((10, True), (13, False), (20, True), (20.5, False), (30, True)):
        clock_ns[0] = int(at_s * 1e9)
        writer.wait(on)
    writer.publish()
    record = reader.read()
    assert record is not None
    assert (record.waited_s, record.waiting) == (3.5, True)
    assert writer.waited_s() == 3.5


def test_a_rank_waits_until_the_outer_of_two_waits_is_over(
    writer: JournalWriter, reader: ProgressReader, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock_ns = [0]
    monkeypatch.setattr(journal.time, "monotonic_ns", lambda: clock_ns[0])
    seen = []
    for at_s, on in ((10, True), (11, True), (13, False), (14, False)):
        clock_ns[0] = int(at_s * 1e9)
        writer.wait(on)
        writer.publish()
        record = reader.read()
        assert record is not None
        seen.append((record.waiting, record.waited_s))
    assert seen == [(True, 0.0), (True, 0.0), (True, 0.0), (False, 4.0)]


@pytest.mark.parametrize("at", [0, 8, 20, 28, 44, 55])
def test_a_torn_progress_record_leaves_the_one_before(
    tmp_path: Path, writer: JournalWriter, reader: ProgressReader, at: int
) -> None:
    writer.count = 1
    writer.publish()
    writer.count = 2
    writer.publish()
    newest = writer._published % 2 * journal._PROGRESS_STRIDE_BYTES
    damage(tmp_path / "progress", newest + at)
    found = reader.read()
    assert found is not None
    assert found.count == 1


def test_a_reader_may_be_there_before_the_writer_and_reads_on_after_its_death(
    tmp_path: Path, reader: ProgressReader
) -> None:
    assert reader.read() is None
    writer = JournalWriter(tmp_path)
    writer.boundary = 7
    writer.publish()
    found = reader.read()
    assert found is not None
    assert found.boundary == 7
    writer.close()
    assert reader.read() == found


def test_a_progress_file_that_is_cut_off_is_no_progress(
    tmp_path: Path, writer: JournalWriter, reader: ProgressReader
) -> None:
    assert reader.read() is not None
    os.truncate(tmp_path / "progress", 0)
    assert reader.read() is None


def test_a_foreign_file_is_no_progress(tmp_path: Path, reader: ProgressReader) -> None:
    (tmp_path / "progress").write_bytes(b"something else of 300 bytes".ljust(300))
    with pytest.raises(JournalError, match="not a progress record"):
        reader.read()


def test_a_full_memory_file_system_is_an_error_and_keeps_the_journals(
    tmp_path: Path, writer: JournalWriter, monkeypatch: pytest.MonkeyPatch
) -> None:
    writer.write_boundary(0, b"small")

    def full(_file: int, _offset: int, _size: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "posix_fallocate", full)
    with pytest.raises(JournalError, match="no room"):
        writer.write_boundary(3, bytes(1 << 20))
    assert read_journal(tmp_path)[0] == {0: b"small"}


KILLED = """
import os, sys
from pathlib import Path
from torchrelay.protocol.journals import journal

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
    def close(self):
        self.real.close()

writer = journal.JournalWriter(Path(sys.argv[1]))
for boundary in range(4):
    writer.write_boundary(boundary, b"payload %d" % boundary * 50)
slot = writer._slots[4 % journal.BOUNDARY_SLOTS]
slot._map = DyingMap(slot._map, int(sys.argv[2]))
writer.write_boundary(4, b"payload 4" * 50)
"""


@pytest.mark.parametrize("write", [0, 1, 2], ids=["clearing the header", "in the payload", "writing the header"])
def test_a_writer_killed_in_the_middle_of_a_slot_leaves_the_others(tmp_path: Path, write: int) -> None:
    done = subprocess.run([sys.executable, "-c", KILLED, str(tmp_path), str(write)], check=False)
    assert done.returncode == -signal.SIGKILL
    assert read_journal(tmp_path)[0] == {n: b"payload %d" % n * 50 for n in (2, 3)}


def damage(path: Path, at: int) -> None:
    with open(path, "r+b") as f:
        f.seek(at)
        byte = f.read(1)[0]
        f.seek(at)
        f.write(bytes([byte ^ 1]))
