"""The kernel's log: one reader of /dev/kmsg, and what its lines say about devices. A new line wakes the reader up.

Leans on the format of /dev/kmsg (Documentation/ABI/testing/dev-kmsg) and on the texts of the NVIDIA driver (450 to 580), amdgpu,
the OOM killer, EDAC and the block layer, which are no interface: a line that is not known is left alone.
"""

from __future__ import annotations

import asyncio
import errno
import os
import re
from collections.abc import Callable
from pathlib import Path

from torchrelay.protocol.health import kinds as k
from torchrelay.protocol.messages import HealthSignal

SAME_S = 1.0
"""The driver repeats itself: the same line about the same device within this time is one piece of evidence."""
PER_S = 50
"""More evidence than this in a second is counted and not told: a log that runs wild must not take the agent with it."""
_RECORD_BYTES = 8192
_READS_PER_TURN = 200

_PCI = r"(?P<device>(?:PCI:)?[0-9a-fA-F]{4,8}:[0-9a-fA-F]{2}:[0-9a-fA-F]{2}(?:\.[0-9a-fA-F])?)"


def _ras(which: str) -> re.Pattern[str]:
    return re.compile(
        rf"amdgpu {_PCI}: amdgpu: (?P<detail>.*?(?P<value>[1-9]\d*) {which} hardware errors? detected in \w+.*)"
    )


_PATTERNS: tuple[tuple[str, re.Pattern[str]], ...] = (
    (k.SXID, re.compile(rf"SXid \({_PCI}[^)]*\): (?P<code>\d+)(?:, )?(?P<detail>.*)")),
    (
        k.RECOVERY_ACTION,
        re.compile(rf"NVRM: Xid \({_PCI}[^)]*\): 154, .*? to 0x(?P<code>[0-9a-fA-F]+) (?P<detail>\(.*)"),
    ),
    (k.XID, re.compile(rf"NVRM: Xid \({_PCI}[^)]*\): (?P<code>\d+)(?:, )?(?P<detail>.*)")),
    (k.GPU_LOST, re.compile(rf"NVRM: .*{_PCI}.*(?P<detail>fallen off the bus.*)")),
    (k.AMD_RESET, re.compile(rf"amdgpu {_PCI}: amdgpu: (?P<detail>GPU reset begin.*)")),
    (k.RAS_UNCORRECTED, _ras("uncorrectable")),
    (k.RAS_CORRECTED, _ras("correctable")),
    (k.EDAC_UNCORRECTED, re.compile(r"EDAC \w+: (?P<detail>(?P<value>\d+) UE .*)")),
    (k.EDAC_CORRECTED, re.compile(r"EDAC \w+: (?P<detail>(?P<value>\d+) CE .*)")),
    (k.EDAC_UNCORRECTED, re.compile(r"mce: (?P<detail>.*(?:Uncorrected|Fatal) .*)")),
    (k.IO_ERROR, re.compile(r"(?P<detail>(?:critical medium|critical target|I/O) error, dev \w+.*)")),
)
_OOM = re.compile(r"oom-kill:constraint=CONSTRAINT_(?P<why>\w+),.*?pid=(?P<pid>\d+)")


def parse_line(text: str) -> HealthSignal | None:
    """Return the evidence in one line of the log (without its prefix), or None. A device is named by its PCI address."""
    if found := _OOM.search(text):
        kind = k.OOM_PROGRAM if found["why"] == "MEMCG" else k.OOM_NODE
        return HealthSignal(kind, worker=f"pid {found['pid']}", detail=text[:200])
    for kind, pattern in _PATTERNS:
        if found := pattern.search(text):
            groups = found.groupdict()
            device = groups.get("device") or ""
            return HealthSignal(
                kind,
                normal_pci(device) if device else "",
                code=int(groups["code"], 16 if kind == k.RECOVERY_ACTION else 10) if "code" in groups else 0,
                value=float(groups.get("value") or 1),
                detail=(groups.get("detail") or "").strip()[:200],
            )
    return None


def normal_pci(address: str) -> str:
    """Return the part of a PCI address that the sources have in common: `PCI:0000:3B:00`, `00000000:3b:00.0` -> `0000:3b:00`."""
    found = re.search(r"([0-9a-fA-F]+):([0-9a-fA-F]{2}):([0-9a-fA-F]{2})", address)
    return f"{int(found[1], 16):04x}:{found[2].lower()}:{found[3].lower()}" if found else address


class Sieve:
    """Lets the first of equal pieces of evidence through, and no more than PER_S in a second."""

    def __init__(self) -> None:
        self._seen: dict[tuple[object, ...], float] = {}
        self._second = 0.0
        self._count = 0
        self.dropped = 0

    def passes(self, signal: HealthSignal, now_s: float) -> bool:
        key = (signal.kind, signal.device, signal.worker, signal.code, signal.detail)
        last_s = self._seen.get(key)
        self._seen = (
            {s: t for s, t in self._seen.items() if now_s - t < SAME_S} if len(self._seen) > 100 else self._seen
        )
        self._seen[key] = now_s
        if last_s is not None and now_s - last_s < SAME_S:
            return False
        if now_s - self._second >= 1.0:
            self._second = now_s
            self._count = 0
        self._count += 1
        if self._count > PER_S:
            self.dropped += 1
            return False
        return True


class KernelLog:
    """Reads the log.

    `tell` gets the evidence of lines that are written from now on; `died(reason)` is called if reading fails later.
    """

    def __init__(self, path: Path, tell: Callable[[HealthSignal], None], died: Callable[[str], None]) -> None:
        self._path = path
        self._tell = tell
        self._died = died
        self._file = -1
        self._rest = b""
        self._sieve = Sieve()

    def open(self) -> str:
        """Start to listen. Return the reason if that is not possible, else an empty text."""
        try:
            # A pipe that is open for writing too does not end when a writer goes.
            access = os.O_RDWR if self._path.is_fifo() else os.O_RDONLY
            self._file = os.open(self._path, access | os.O_NONBLOCK | os.O_CLOEXEC)
            if self._path == Path("/dev/kmsg"):
                os.lseek(self._file, 0, os.SEEK_END)
        except OSError as e:
            self.close()
            return f"{self._path} cannot be read: {e.strerror}"
        asyncio.get_running_loop().add_reader(self._file, self.read)
        return ""

    def close(self) -> None:
        if self._file >= 0:
            asyncio.get_running_loop().remove_reader(self._file)
            os.close(self._file)
            self._file = -1

    def read(self) -> None:
        """Read and handle the lines that have arrived."""
        for _ in range(_READS_PER_TURN):
            if self._file < 0:
                return
            try:
                data = os.read(self._file, _RECORD_BYTES)
            except BlockingIOError:
                return
            except OSError as e:
                if e.errno == errno.EPIPE:
                    continue  # records were overwritten before they were read; the next one is there
                self.close()
                self._died(f"{self._path} cannot be read any more: {e.strerror}")
                return
            if not data:
                self.close()
                self._died(f"{self._path} has ended")
                return
            self._take(data)

    def _take(self, data: bytes) -> None:
        *lines, self._rest = (self._rest + data).split(b"\n")
        self._rest = self._rest[-_RECORD_BYTES:]
        for line in lines:
            prefix, mark, text = line.decode("utf-8", "replace").partition(";")
            signal = parse_line(text if mark and prefix[:1].isdigit() else prefix + mark + text)
            if signal is not None and self._sieve.passes(signal, asyncio.get_running_loop().time()):
                self._tell(signal)
