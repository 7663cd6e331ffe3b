"""A worker's journal: host state and progress in shared memory, readable after the worker is dead.

Standard library only.

One folder per worker, on a memory file system. `progress` holds two fixed records, written in turn many times a step:
whatever a killed writer left half done, the other one is whole. Each `gate-N`, `set-up` file holds one
payload behind a header with its number, length and CRC-32; the writer clears the header first and writes it last, so
what a killed writer left half done reads as absent. So does each `boundary-N` file, which holds its payload in parts
(`journal_blocks`).
"""

from __future__ import annotations

import mmap
import os
import struct
import time
import zlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from torchrelay.protocol.errors import JournalError
from torchrelay.protocol.journals.blocks import BlockSlot, Checksums, map_file, read_blocks
from torchrelay.protocol.machine.private import make_below, open_below
from torchrelay.protocol.messages import ReplicaCheck
from torchrelay.protocol.words.positions import PHASES

BOUNDARY_SLOTS = 3
"""The boundary being written, the one before, and the one before that: a lost rank can be one ahead or one behind."""
GATE_SLOTS = 2
AFTER = "after"
"""The file with what a rank's collectives behind its latest gate gave this rank alone."""

_HEADER = struct.Struct("<8sqQI4x")
_MAGIC = b"TRJRNL01"
_PROGRESS = struct.Struct("<8sQQqqIIQQ")
_PROGRESS_CRC = struct.Struct("<I")
_PROGRESS_MAGIC = b"TRPROG02"
_PROGRESS_BYTES = _PROGRESS.size + _PROGRESS_CRC.size
_PROGRESS_STRIDE_BYTES = 128
"""The two records share no cache line."""
_DEVICE_WAIT = struct.Struct("<Q")
_DEVICE_WAIT_AT = 2 * _PROGRESS_STRIDE_BYTES
"""Behind both records, since it has a writer of its own."""


def _slot_crc(number: int, payload: bytes) -> int:
    return zlib.crc32(payload, zlib.crc32(number.to_bytes(8, "little", signed=True)))


class _Slot:
    def __init__(self, path: Path, root: Path) -> None:
        self._file = open_below(root, path)
        self._map: mmap.mmap | None = None

    def write(self, number: int, payload: bytes) -> None:
        need = _HEADER.size + len(payload)
        if self._map is None or len(self._map) < need:
            if self._map is not None:
                self._map.close()
                self._map = None
            self._map = map_file(self._file, max(need + need // 4, mmap.PAGESIZE))
        self._map[: _HEADER.size] = bytes(_HEADER.size)
        self._map[_HEADER.size : need] = payload
        self._map[: _HEADER.size] = _HEADER.pack(_MAGIC, number, len(payload), _slot_crc(number, payload))

    @property
    def allocated_bytes(self) -> int:
        return len(self._map) if self._map is not None else 0

    def close(self) -> None:
        if self._map is not None:
            self._map.close()
        os.close(self._file)


class JournalWriter:
    """The shim's side. Not thread safe, except `progress`, whose fields are written by the training thread alone."""

    def __init__(self, folder: Path) -> None:
        """Create the journal's files. Raises OSError, JournalError."""
        make_below(folder, folder)
        checksums = Checksums()
        self._slots = [BlockSlot(folder / f"boundary-{i}", folder, checksums) for i in range(BOUNDARY_SLOTS)]
        self._gates = [_Slot(folder / f"gate-{i}", folder) for i in range(GATE_SLOTS)]
        self._set_up = _Slot(folder / "set-up", folder)
        self._after = _Slot(folder / AFTER, folder)
        fd = open_below(folder, folder / "progress")
        try:
            self._progress = map_file(fd, mmap.PAGESIZE)
        finally:
            os.close(fd)
        self._published = 0
        self.generation = 0
        self.boundary = -1
        self.gates_passed = 0
        self.phase = 0
        self.waiting = 0
        self.count = 0
        self.waited_ns = self._waits_since_ns = 0
        self.publish()

    def wait(self, on: bool) -> None:
        """Note that a wait for peers begins (`on`) or is over. Waits may be nested. `publish` makes it visible."""
        self.waiting += 1 if on else -1
        if on and self.waiting == 1:
            self._waits_since_ns = time.monotonic_ns()
        elif not self.waiting:
            self.waited_ns += time.monotonic_ns() - self._waits_since_ns

    def waited_s(self) -> float:
        """Return how long this rank has been inside of collectives that are over, in total."""
        return self.waited_ns / 1e9

    @property
    def allocated_bytes(self) -> int:
        """Return how much shared memory the journals take."""
        slots = (*self._gates, self._set_up, self._after)
        boundaries_bytes = sum(slot.allocated_bytes for slot in self._slots)
        return len(self._progress) + boundaries_bytes + sum(slot.allocated_bytes for slot in slots)

    def publish(self) -> None:
        """Make the progress fields visible to the agent. Takes about a microsecond."""
        self._published += 1
        record = _PROGRESS.pack(
            _PROGRESS_MAGIC,
            self._published,
            self.generation,
            self.boundary,
            self.gates_passed,
            self.phase,
            self.waiting,
            self.count,
            self.waited_ns,
        )
        start = self._published % 2 * _PROGRESS_STRIDE_BYTES
        self._progress[start : start + _PROGRESS_BYTES] = record + _PROGRESS_CRC.pack(zlib.crc32(record))

    def device_waits(self, since_ns: int) -> None:
        """Tell since when a collective has waited on a device for other ranks, by the monotonic clock; 0 while none waits.

        To be called by one thread only, which may be another than the one that publishes.
        """
        self._progress[_DEVICE_WAIT_AT : _DEVICE_WAIT_AT + _DEVICE_WAIT.size] = _DEVICE_WAIT.pack(since_ns)

    def write_boundary(self, boundary: int, payload: bytes, blocks: Sequence[bytes] = ()) -> None:
        """Write a boundary's journal: `payload`, followed by all `blocks`. An empty payload: this boundary is no boundary any more.

        A block that is the same object as when this file was last written is not written again.

        Raises JournalError if shared memory has no room; the journals from before are whole then.
        """
        self._slots[boundary % BOUNDARY_SLOTS].write(boundary, (payload, *blocks))

    def write_gate(self, boundary: int, payload: bytes) -> None:
        """Write the journal taken at the gate of the step that starts at `boundary`."""
        self._gates[boundary % GATE_SLOTS].write(boundary, payload)

    def write_after(self, payload: bytes) -> None:
        """Write the results since the latest gate, under the number of that gate's journal."""
        self._after.write(self.gates_passed - 1, payload)

    def told(self, check: ReplicaCheck) -> None:
        """Note that the rank has told the controller what it holds. Only a copy on another machine keeps that, see journal_copy."""

    def write_set_up(self, payload: bytes) -> None:
        self._set_up.write(0, payload)

    def close(self) -> None:
        for boundary in self._slots:
            boundary.close()
        for slot in (*self._gates, self._set_up, self._after):
            slot.close()
        self._progress.close()


@dataclass(frozen=True)
class ProgressRecord:
    generation: int
    boundary: int
    gates_passed: int
    phase: str
    waiting: bool
    count: int
    waited_s: float = 0.0
    """Inside of collectives, all together."""
    device_wait_s: float = field(default=0.0, compare=False)
    """For how long a collective has waited on a device for other ranks: then whoever waits for the device waits for them."""


class ProgressReader:
    """The agent's side of `progress`. It opens the file once the file is there, and reads it several times a second."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / "progress"
        self._file = -1

    def read(self) -> ProgressRecord | None:
        """Return the worker's progress, or None before it has written any. Raises JournalError for a foreign file, OSError."""
        if self._file < 0:
            try:
                self._file = os.open(self._path, os.O_RDONLY | os.O_CLOEXEC)
            except FileNotFoundError:
                return None
        # The file is not mapped: if it were truncated, to read the map would end the process with SIGBUS.
        return _newest_progress(self._path, os.pread(self._file, _DEVICE_WAIT_AT + _DEVICE_WAIT.size, 0))

    def close(self) -> None:
        if self._file >= 0:
            os.close(self._file)
            self._file = -1


def _newest_progress(path: Path, data: bytes) -> ProgressRecord | None:
    records = [data[start : start + _PROGRESS_BYTES] for start in (0, _PROGRESS_STRIDE_BYTES)]
    whole = [_PROGRESS.unpack(r[: _PROGRESS.size]) for r in records if _is_whole(r)]
    if not whole:
        if any(r[:8] not in (b"", bytes(8), _PROGRESS_MAGIC) for r in records):
            raise JournalError(f"{path} is not a progress record of this version")
        return None
    _, _, generation, boundary, gates, phase, waiting, count, waited_ns = max(whole, key=lambda record: int(record[1]))
    if phase >= len(PHASES):
        raise JournalError(f"{path} is not a progress record of this version")
    (since_ns,) = _DEVICE_WAIT.unpack(data[_DEVICE_WAIT_AT:]) if len(data) > _DEVICE_WAIT_AT else (0,)
    waits_s = max(time.monotonic_ns() - since_ns, 1) / 1e9 if since_ns else 0.0
    return ProgressRecord(
        generation, boundary, gates, PHASES[phase].value, bool(waiting), count, waited_ns / 1e9, waits_s
    )


def _is_whole(record: bytes) -> bool:
    if len(record) < _PROGRESS_BYTES or record[:8] != _PROGRESS_MAGIC:
        return False
    (crc,) = _PROGRESS_CRC.unpack(record[_PROGRESS.size :])
    return bool(crc == zlib.crc32(record[: _PROGRESS.size]))


def write_slot(path: Path, number: int, payload: bytes, root: Path) -> None:
    """Write one payload into a file of its own, below `root`. Raises OSError, JournalError."""
    slot = _Slot(path, root)
    try:
        slot.write(number, payload)
    finally:
        slot.close()


def read_slot(path: Path) -> tuple[int, bytes] | None:
    """Return number and payload; None if the file holds no whole payload. Raises OSError."""
    try:
        with open(path, "rb") as f:
            head = f.read(_HEADER.size)
            if len(head) < _HEADER.size:
                return None
            magic, number, length, crc = _HEADER.unpack(head)
            if magic != _MAGIC:
                return None
            payload = f.read(length)
    except FileNotFoundError:
        return None
    if len(payload) != length or _slot_crc(number, payload) != crc:
        return None
    return number, payload


def read_journal(folder: Path) -> tuple[dict[int, bytes], dict[int, bytes], bytes]:
    """Return the whole boundary journals and gate journals by number, and the recording of the set-up (empty if there is none)."""
    boundaries = [read_blocks(folder / f"boundary-{i}") for i in range(BOUNDARY_SLOTS)]
    gates = [read_slot(folder / f"gate-{i}") for i in range(GATE_SLOTS)]
    set_up = read_slot(folder / "set-up")
    return dict(filter(None, boundaries)), dict(filter(None, gates)), set_up[1] if set_up else b""
