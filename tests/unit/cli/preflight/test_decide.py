"""What was seen, and what is said about it: each verdict that is not good has a remedy."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from torchrelay.cli.preflight import decide
from torchrelay.cli.preflight.facts import (
    UNLIMITED,
    Clock,
    FolderFacts,
    Gpus,
    Limits,
    Memory,
    Reader,
    WorkerFacts,
)
from torchrelay.cli.preflight.finding import Finding, Mark

GIB = 1 << 30
WORKER = WorkerFacts("", "3.11.7", "/usr/bin/python", "2.13.0", "", "", ("gloo",), True)
SHM = FolderFacts(Path("/dev/shm"), "", GIB, GIB)
LIMITS = Limits(4096, UNLIMITED)


def worker(**changes: Any) -> WorkerFacts:
    return dataclasses.replace(WORKER, **changes)


@pytest.mark.parametrize(
    ("found", "mark", "said"),
    [
        (decide.python(WORKER), Mark.WELL, "Python 3.11.7"),
        (decide.python(worker(python="3.9.2")), Mark.BAD, "too old"),
        (decide.python(worker(problem="no such file")), Mark.BAD, "no training process can be started: no such file"),
        (decide.torch(WORKER), Mark.WELL, "torch 2.13.0, built for the CPU"),
        (decide.torch(worker(cuda="12.8")), Mark.WELL, "CUDA 12.8"),
        (decide.torch(worker(torch_problem="ImportError: libcudart")), Mark.BAD, "libcudart"),
        (decide.backend(WORKER), Mark.WELL, "gloo"),
        (decide.backend(worker(backends=("nccl",))), Mark.BAD, "no gloo"),
        (decide.way_in(WORKER), Mark.WELL, "let into"),
        (decide.way_in(worker(shadowed="/opt/sitecustomize.py")), Mark.WELL, "/opt/sitecustomize.py"),
        (decide.way_in(worker(let_in=False, loaded="/opt/other.py")), Mark.BAD, "/opt/other.py"),
        (decide.way_in(worker(let_in=False)), Mark.BAD, "loads none at all"),
        (decide.shim(WORKER), Mark.WELL, "is there"),
        (decide.shim(worker(shim_problem="ImportError: x")), Mark.BAD, "ImportError: x"),
        (decide.shared_memory(SHM, 4), Mark.WELL, "/dev/shm has 1.0 GiB of 1.0 GiB free"),
        (
            decide.shared_memory(dataclasses.replace(SHM, free_bytes=2 << 20), 4),
            Mark.BAD,
            "/dev/shm has 2.0 MiB of 1.0 GiB free, and the journals of 4 processes need 4.0 MiB",
        ),
        (decide.shared_memory(dataclasses.replace(SHM, free_bytes=9 << 20), 4), Mark.WARNING, "may need 64.0 MiB"),
        (decide.shared_memory(dataclasses.replace(SHM, exists=False), 4), Mark.WARNING, "journals go to disk"),
        (decide.shared_memory(dataclasses.replace(SHM, problem="quota"), 4), Mark.BAD, "quota"),
        (decide.checkpoint_folder(FolderFacts(Path("jit"), "", GIB)), Mark.WELL, "jit can be written, 1.0 GiB free"),
        (decide.checkpoint_folder(FolderFacts(Path("jit"), "", 4096)), Mark.BAD, "too little"),
        (decide.checkpoint_folder(FolderFacts(Path("/proc/x"), "no")), Mark.BAD, "--jit-dir /proc/x: no"),
        (decide.state_folder(FolderFacts(Path("/s")), ""), Mark.WELL, "the state folder: /s"),
        (decide.state_folder(FolderFacts(Path("/s"), "full"), ""), Mark.BAD, "/s: full"),
        (decide.cache_folder(None), Mark.WARNING, "no folder"),
        (decide.cache_folder(FolderFacts(Path("/c"), "read-only")), Mark.WARNING, "read-only"),
        (decide.cache_folder(FolderFacts(Path("/c"))), Mark.WELL, "/c"),
        (decide.open_files(LIMITS, 8), Mark.WELL, "4096"),
        (decide.open_files(LIMITS, 1024), Mark.WARNING, "8192 are advised"),
        (decide.open_files(Limits(UNLIMITED, UNLIMITED), 1024), Mark.WELL, "no limit"),
        (decide.processes(LIMITS, 4), Mark.WELL, "4 processes"),
        (decide.processes(Limits(1, 1000, 900), 4), Mark.WARNING, "1000 threads and has 900; the job may need 256"),
        (decide.processes(Limits(1, UNLIMITED, 0, 300, 100), 4), Mark.WARNING, "this container may have 300"),
        (decide.memory(Memory(UNLIMITED, GIB, 8 * GIB), 4), Mark.WELL, "7.0 GiB of 8.0 GiB left (machine)"),
        (decide.memory(Memory(2 * GIB, GIB, 8 * GIB), 4), Mark.WARNING, "the container (cgroup) has 1.0 GiB"),
        (decide.pidfd(True, "6.1"), Mark.WELL, "Linux 6.1"),
        (decide.pidfd(False, "4.18"), Mark.BAD, "Linux 4.18 has no pidfd_open"),
        (decide.loopback(""), Mark.WELL, "work"),
        (decide.loopback("refused"), Mark.BAD, "refused"),
        (decide.reader(Reader("py-spy")), Mark.WELL, "py-spy"),
        (decide.reader(Reader()), Mark.WARNING, "py-spy is not there"),
        (decide.reader(Reader("py-spy", "EPERM")), Mark.WARNING, "EPERM"),
        (decide.clock(Clock(2e9, 1e9, True), 2), Mark.WELL, "synchronized"),
        (decide.clock(Clock(2e9, 1e9, False), 2), Mark.WARNING, "six hours"),
        (decide.clock(Clock(2e9, 1e9, False), 1), Mark.WELL, "plausible"),
        (decide.clock(Clock(1e9, 2e9, True), 1), Mark.BAD, "behind"),
        (decide.gpus(Gpus(), WORKER), Mark.WELL, "no NVIDIA GPU"),
        (decide.gpus(Gpus(2), worker(cuda="12.8")), Mark.WELL, "2 GPUs"),
        (decide.gpus(Gpus(2), WORKER), Mark.WARNING, "built for the CPU"),
        (decide.gpus(Gpus(2, ("libnvidia-ml.so.1",)), WORKER), Mark.WARNING, "libnvidia-ml.so.1"),
        (decide.address("node0", ""), Mark.WELL, "node0"),
        (decide.address("node0", "unknown"), Mark.BAD, "node0 cannot be reached from here: unknown"),
        (decide.command_line("", "train.py"), Mark.WELL, "train.py"),
    ],
)
def test_a_verdict_says_what_was_seen_and_what_to_do(found: Finding, mark: Mark, said: str) -> None:
    assert found.mark is mark
    assert said in found.text
    assert bool(found.remedy) is (mark is not Mark.WELL)


@pytest.mark.parametrize("judge", [decide.shared_memory, decide.memory, decide.processes])
def test_more_processes_need_more(judge: Callable[..., Finding]) -> None:
    facts = {
        decide.shared_memory: dataclasses.replace(SHM, free_bytes=100 << 20),
        decide.memory: Memory(UNLIMITED, 0, 2 * GIB),
        decide.processes: Limits(1, 300),
    }[judge]
    assert [judge(facts, number).mark for number in (1, 20)] != [judge(facts, 1).mark] * 2


def test_a_wrong_command_line_is_told_as_it_is() -> None:
    assert decide.command_line("--spares -1: give 0 or more", "") == Finding(Mark.BAD, "--spares -1: give 0 or more")


def test_a_state_folder_that_others_can_write_to_is_told_as_a_run_would() -> None:
    assert decide.state_folder(FolderFacts(Path("/s")), "is of another user: set X") == Finding(
        Mark.BAD, "is of another user: set X"
    )
