from __future__ import annotations

import asyncio
import os
from pathlib import Path

import pytest

from torchrelay.agent.health.machine import kernel_log
from torchrelay.agent.health.machine.kernel_log import PER_S, KernelLog, Sieve, normal_pci, parse_line
from torchrelay.protocol.health import kinds as k
from torchrelay.protocol.messages import HealthSignal

GPU = "0000:3b:00"


@pytest.mark.parametrize(
    ("line", "kind", "device", "code", "value"),
    [
        ("NVRM: Xid (PCI:0000:3b:00): 79, pid='<unknown>', GPU has fallen off the bus.", k.XID, GPU, 79, 1.0),
        ("NVRM: Xid (PCI:0000:3B:00 GPU-I:05): 94, pid=7194, Contained: CE User Channel", k.XID, GPU, 94, 1.0),
        ("NVRM: Xid (PCI:0000:3b:00): 43, pid=1, name=python, Ch 00000008", k.XID, GPU, 43, 1.0),
        (
            "NVRM: Xid (PCI:0000:3b:00): 154, GPU recovery action changed from 0x0 (None) to 0x1 (GPU Reset Required)",
            k.RECOVERY_ACTION,
            GPU,
            1,
            1.0,
        ),
        ("nvidia-nvswitch0: SXid (PCI:0000:c1:00.0): 12028, Non-fatal, Link 32", k.SXID, "0000:c1:00", 12028, 1.0),
        ("NVRM: GPU at PCI:0000:3b:00: GPU-ab has fallen off the bus.", k.GPU_LOST, GPU, 0, 1.0),
        ("amdgpu 0000:3b:00.0: amdgpu: GPU reset begin!", k.AMD_RESET, GPU, 0, 1.0),
        (
            "amdgpu 0000:3b:00.0: amdgpu: socket: 0, die: 0, 3 uncorrectable hardware errors detected in umc block",
            k.RAS_UNCORRECTED,
            GPU,
            0,
            3.0,
        ),
        (
            "amdgpu 0000:3b:00.0: amdgpu: 12 correctable hardware errors detected in gfx block",
            k.RAS_CORRECTED,
            GPU,
            0,
            12.0,
        ),
        ("EDAC MC0: 2 UE memory read error on CPU_SrcID#0", k.EDAC_UNCORRECTED, "", 0, 2.0),
        ("EDAC MC0: 1 CE memory read error on CPU_SrcID#0", k.EDAC_CORRECTED, "", 0, 1.0),
        ("mce: [Hardware Error]: Uncorrected hardware memory error", k.EDAC_UNCORRECTED, "", 0, 1.0),
        ("I/O error, dev nvme0n1, sector 2048 op 0x0:(READ)", k.IO_ERROR, "", 0, 1.0),
    ],
)
def test_a_line_of_the_kernel_is_understood(line: str, kind: str, device: str, code: int, value: float) -> None:
    signal = parse_line(line)
    assert signal is not None
    assert (signal.kind, signal.device, signal.code, signal.value) == (kind, device, code, value)


@pytest.mark.parametrize(("why", "kind"), [("MEMCG", k.OOM_PROGRAM), ("NONE", k.OOM_NODE), ("CPUSET", k.OOM_NODE)])
def test_who_ran_out_of_memory_decides_whose_fault_it_is(why: str, kind: str) -> None:
    signal = parse_line(f"oom-kill:constraint=CONSTRAINT_{why},nodemask=(null),task=python,pid=4242,uid=0")
    assert signal is not None
    assert (signal.kind, signal.worker) == (kind, "pid 4242")


@pytest.mark.parametrize(
    "line",
    [
        "usb 1-1: new high-speed USB device",
        "NVRM: loading NVIDIA UNIX x86_64 Kernel Module",
        "amdgpu 0000:3b:00.0: amdgpu: 0 uncorrectable hardware errors detected in umc block",
        "",
    ],
)
def test_other_lines_say_nothing(line: str) -> None:
    assert parse_line(line) is None


def test_addresses_of_all_sources_are_written_alike() -> None:
    assert {normal_pci(a) for a in ("PCI:0000:3B:00", "00000000:3b:00.0", "0000:3b:00.0")} == {GPU}


def test_the_same_evidence_within_a_second_counts_once() -> None:
    sieve, signal = Sieve(), HealthSignal(k.XID, GPU, code=31)
    assert [sieve.passes(signal, t) for t in (0.0, 0.5, 1.4, 2.5)] == [True, False, False, True]
    assert sieve.passes(HealthSignal(k.XID, GPU, code=79), 2.5)


def test_a_log_that_runs_wild_is_cut_off_and_counted() -> None:
    sieve = Sieve()
    passed = sum(sieve.passes(HealthSignal(k.IO_ERROR, detail=str(i)), 10.0) for i in range(PER_S + 30))
    assert (passed, sieve.dropped) == (PER_S, 30)
    assert sieve.passes(HealthSignal(k.IO_ERROR, detail="later"), 11.0)


class Reader:
    def __init__(self, path: Path) -> None:
        self.signals: list[HealthSignal] = []
        self.died: list[str] = []
        self.two = asyncio.Event()
        self.log = KernelLog(path, self._tell, self.died.append)

    def _tell(self, signal: HealthSignal) -> None:
        self.signals.append(signal)
        if len(self.signals) == 2:
            self.two.set()


def test_what_is_written_from_now_on_is_read_at_once_and_in_parts(tmp_path: Path) -> None:
    path = tmp_path / "kmsg"
    os.mkfifo(path)

    async def scenario() -> Reader:
        reader = Reader(path)
        assert reader.log.open() == ""
        file = os.open(path, os.O_WRONLY)
        os.write(file, b"3,1,1,-;NVRM: Xid (PCI:0000:3b:00): 79, pi")
        os.write(file, b"d=1\n6,2,2,-;nothing\n3,3,3,-;NVRM: Xid (PCI:0000:3b:00): 48, pid=1\n")
        os.close(file)
        await reader.two.wait()
        reader.log.close()
        return reader

    reader = asyncio.run(asyncio.wait_for(scenario(), 10))
    assert [s.code for s in reader.signals] == [79, 48]
    assert reader.died == []


def test_a_log_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    async def scenario() -> str:
        return Reader(tmp_path / "kmsg").log.open()

    assert "kmsg cannot be read: No such file" in asyncio.run(scenario())


def test_records_that_were_overwritten_are_skipped_and_a_broken_log_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "kmsg"
    os.mkfifo(path)
    answers: list[object] = [
        BrokenPipeError(32, "overwritten"),
        b"3,1,1,-;NVRM: Xid (PCI:0000:3b:00): 79, x\n",
        OSError(5, "I/O"),
    ]

    def read(file: int, size: int) -> bytes:
        answer = answers.pop(0)
        if isinstance(answer, OSError):
            raise answer
        assert isinstance(answer, bytes)
        return answer

    async def scenario() -> Reader:
        reader = Reader(path)
        reader.log.open()
        with monkeypatch.context() as patch:
            patch.setattr(kernel_log.os, "read", read)
            reader.log.read()
        return reader

    reader = asyncio.run(scenario())
    assert [s.code for s in reader.signals] == [79]
    assert reader.died == [f"{path} cannot be read any more: I/O"]
