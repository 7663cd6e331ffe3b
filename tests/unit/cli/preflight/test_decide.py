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
    Compared,
    FolderFacts,
    Gpus,
    Memory,
    ProcessLimits,
    Reader,
    WorkerFacts,
)
from torchrelay.cli.preflight.finding import Finding, FindingMark

GIB = 1 << 30
WORKER = WorkerFacts("", "3.11.7", "/usr/bin/python", "2.13.0", "", "", ("gloo",), True)
SHM = FolderFacts(Path("/dev/shm"), "", GIB, GIB)
LIMITS = ProcessLimits(4096, UNLIMITED)


def worker(**changes: Any) -> WorkerFacts:
    return dataclasses.replace(WORKER, **changes)


@pytest.mark.parametrize(
    ("found", "mark", "said"),
    [
        (decide.python(WORKER), FindingMark.WELL, "Python 3.11.7"),
        (decide.python(worker(python="3.9.2")), FindingMark.BAD, "too old"),
        (
            decide.python(worker(problem="no such file")),
            FindingMark.BAD,
            "no training process can be started: no such file",
        ),
        (decide.torch(WORKER), FindingMark.WELL, "torch 2.13.0, built for the CPU"),
        (decide.torch(worker(cuda="12.8")), FindingMark.WELL, "CUDA 12.8"),
        (decide.torch(worker(torch_problem="ImportError: libcudart")), FindingMark.BAD, "libcudart"),
        (decide.backend(WORKER), FindingMark.WELL, "gloo"),
        (decide.backend(worker(backends=("nccl", "ucc"))), FindingMark.WELL, "jobs on nccl are protected"),
        (
            decide.backend(worker(backends=("mpi",))),
            FindingMark.BAD,
            "none of the backends that protected jobs use: gloo",
        ),
        (decide.way_in(WORKER), FindingMark.WELL, "let into"),
        (decide.way_in(worker(shadowed="/opt/sitecustomize.py")), FindingMark.WELL, "/opt/sitecustomize.py"),
        (decide.way_in(worker(let_in=False, loaded="/opt/other.py")), FindingMark.BAD, "/opt/other.py"),
        (decide.way_in(worker(let_in=False)), FindingMark.BAD, "loads none at all"),
        (decide.shim(WORKER), FindingMark.WELL, "is there"),
        (decide.shim(worker(shim_problem="ImportError: x")), FindingMark.BAD, "ImportError: x"),
        (decide.shared_memory(SHM, 4), FindingMark.WELL, "/dev/shm has 1.0 GiB of 1.0 GiB free"),
        (
            decide.shared_memory(dataclasses.replace(SHM, free_bytes=2 << 20), 4),
            FindingMark.BAD,
            "/dev/shm has 2.0 MiB of 1.0 GiB free, and the journals of 4 processes need 4.0 MiB",
        ),
        (
            decide.shared_memory(dataclasses.replace(SHM, free_bytes=9 << 20), 4),
            FindingMark.WARNING,
            "may need 64.0 MiB",
        ),
        (decide.shared_memory(dataclasses.replace(SHM, exists=False), 4), FindingMark.WARNING, "journals go to disk"),
        (decide.shared_memory(dataclasses.replace(SHM, problem="quota"), 4), FindingMark.BAD, "quota"),
        (
            decide.checkpoint_folder(FolderFacts(Path("jit"), "", GIB)),
            FindingMark.WELL,
            "jit can be written, 1.0 GiB free",
        ),
        (decide.checkpoint_folder(FolderFacts(Path("jit"), "", 4096)), FindingMark.BAD, "too little"),
        (decide.checkpoint_folder(FolderFacts(Path("/proc/x"), "no")), FindingMark.BAD, "--jit-dir /proc/x: no"),
        (decide.state_folder(FolderFacts(Path("/s")), ""), FindingMark.WELL, "the state folder: /s"),
        (decide.state_folder(FolderFacts(Path("/s"), "full"), ""), FindingMark.BAD, "/s: full"),
        (decide.cache_folder(None), FindingMark.WARNING, "no folder"),
        (decide.cache_folder(FolderFacts(Path("/c"), "read-only")), FindingMark.WARNING, "read-only"),
        (decide.cache_folder(FolderFacts(Path("/c"))), FindingMark.WELL, "/c"),
        (decide.open_files(LIMITS, 8), FindingMark.WELL, "4096"),
        (decide.open_files(LIMITS, 1024), FindingMark.WARNING, "8192 are advised"),
        (decide.open_files(ProcessLimits(UNLIMITED, UNLIMITED), 1024), FindingMark.WELL, "no limit"),
        (decide.processes(LIMITS, 4), FindingMark.WELL, "4 processes"),
        (
            decide.processes(ProcessLimits(1, 1000, 900), 4),
            FindingMark.WARNING,
            "1000 threads and has 900; the job may need 256",
        ),
        (
            decide.processes(ProcessLimits(1, UNLIMITED, 0, 300, 100), 4),
            FindingMark.WARNING,
            "this container may have 300",
        ),
        (decide.memory(Memory(UNLIMITED, GIB, 8 * GIB), 4), FindingMark.WELL, "7.0 GiB of 8.0 GiB left (machine)"),
        (decide.memory(Memory(2 * GIB, GIB, 8 * GIB), 4), FindingMark.WARNING, "the container (cgroup) has 1.0 GiB"),
        (decide.pidfd(True, "6.1"), FindingMark.WELL, "Linux 6.1"),
        (decide.pidfd(False, "4.18"), FindingMark.BAD, "Linux 4.18 has no pidfd_open"),
        (decide.loopback(""), FindingMark.WELL, "work"),
        (decide.loopback("refused"), FindingMark.BAD, "refused"),
        (decide.reader(Reader("py-spy")), FindingMark.WELL, "py-spy"),
        (decide.reader(Reader()), FindingMark.WARNING, "py-spy is not there"),
        (decide.reader(Reader("py-spy", "EPERM")), FindingMark.WARNING, "EPERM"),
        (decide.clock(Clock(2e9, 1e9, True), 2), FindingMark.WELL, "synchronized"),
        (decide.clock(Clock(2e9, 1e9, False), 2), FindingMark.WARNING, "six hours"),
        (decide.clock(Clock(2e9, 1e9, False), 1), FindingMark.WELL, "plausible"),
        (decide.clock(Clock(1e9, 2e9, True), 1), FindingMark.BAD, "behind"),
        (decide.gpus(Gpus(), WORKER), FindingMark.WELL, "no NVIDIA GPU"),
        (decide.gpus(Gpus(2), worker(cuda="12.8")), FindingMark.WELL, "2 GPUs"),
        (decide.gpus(Gpus(2), WORKER), FindingMark.WARNING, "built for the CPU"),
        (decide.gpus(Gpus(2, ("libnvidia-ml.so.1",)), WORKER), FindingMark.WARNING, "libnvidia-ml.so.1"),
        (decide.address("node0", ""), FindingMark.WELL, "node0"),
        (decide.address("node0", "unknown"), FindingMark.BAD, "node0 cannot be reached from here: unknown"),
        (decide.controller_port(29476, ""), FindingMark.WELL, "port 29476 is free"),
        (decide.metrics_port("127.0.0.1", 29480, ""), FindingMark.WELL, "127.0.0.1:29480 is free"),
        (decide.metrics_port("127.0.0.1", 29480, "process 7 listens"), FindingMark.BAD, "cannot be used: process 7"),
        (decide.controller_port(29476, "process 7 listens"), FindingMark.BAD, "29476, where the other machines look"),
        (decide.command_line("", "train.py"), FindingMark.WELL, "train.py"),
    ],
)
def test_a_verdict_says_what_was_seen_and_what_to_do(found: Finding, mark: FindingMark, said: str) -> None:
    assert found.mark is mark
    assert said in found.text
    assert bool(found.remedy) is (mark is not FindingMark.WELL)


@pytest.mark.parametrize("judge", [decide.shared_memory, decide.memory, decide.processes])
def test_more_processes_need_more(judge: Callable[..., Finding]) -> None:
    facts = {
        decide.shared_memory: dataclasses.replace(SHM, free_bytes=100 << 20),
        decide.memory: Memory(UNLIMITED, 0, 2 * GIB),
        decide.processes: ProcessLimits(1, 300),
    }[judge]
    assert [judge(facts, number).mark for number in (1, 20)] != [judge(facts, 1).mark] * 2


def test_a_wrong_command_line_is_told_as_it_is() -> None:
    assert decide.command_line("--spares -1: give 0 or more", "") == Finding(
        FindingMark.BAD, "--spares -1: give 0 or more"
    )


def test_a_state_folder_that_others_can_write_to_is_told_as_a_run_would() -> None:
    assert decide.state_folder(FolderFacts(Path("/s")), "is of another user: set X") == Finding(
        FindingMark.BAD, "is of another user: set X"
    )


THERE = "torchrelay doctor --nnodes 2 --node-rank 1 train.py"


@pytest.mark.parametrize(
    ("compared", "marks", "said"),
    [
        (Compared("node0:1", ("n0",)), [FindingMark.WELL], "the same here and on n0 (asked at node0:1)"),
        (
            Compared("node0:1", ("n0", "n1"), ("n0 has torch 2, this machine has 3",), ("notes.py is not on n0",)),
            [FindingMark.BAD, FindingMark.WARNING],
            "n0 has torch 2, this machine has 3",
        ),
        (Compared(), [FindingMark.WARNING], "no command of this job answers at node0:1 or node1:1"),
        (Compared(problem="port 1 is in use"), [FindingMark.WARNING], "port 1 is in use. So this was not compared"),
        (Compared("node0:1"), [FindingMark.WARNING], "no machine has come to the controller at node0:1 yet"),
        (
            Compared("node0:1", problem="too old"),
            [FindingMark.WARNING],
            "too old. So this was not compared",
        ),
        (
            Compared(missing=("n1", "n2"), waited_s=60.0),
            [FindingMark.BAD],
            "n1, n2 have not come at node0:1 or node1:1 within 60 s, and were not compared",
        ),
        (
            Compared("node0:1", ("n1",), ("n1 has torch 2, this machine has 3",), missing=("n2",), waited_s=5.0),
            [FindingMark.BAD, FindingMark.BAD],
            "n1 has torch 2, this machine has 3",
        ),
        (
            Compared("node0:1", ("n1",), missing=("n2",), waited_s=5.0),
            [FindingMark.WELL, FindingMark.BAD],
            "the same here and on n1",
        ),
        (Compared(strangers=("node0:1",)), [FindingMark.BAD], "node0:1 that does not know this job's secret"),
    ],
)
def test_machines_are_compared_or_it_is_said_that_they_were_not(
    compared: Compared, marks: list[FindingMark], said: str
) -> None:
    found = decide.machines(("node0:1", "node1:1"), compared, THERE)
    assert [each.mark for each in found] == marks
    assert said in found[0].text
    was_compared = bool(compared.nodes or compared.strangers)
    assert (
        "the versions of torch and Python, numbers of machines and ranks, the faults of --inject" in found[0].text
    ) is not was_compared
    assert (THERE in found[0].remedy) is not was_compared
