from __future__ import annotations

from pathlib import Path

import pytest

from torchrelay.agent.health.machine.host_cpu import HostCpu
from torchrelay.protocol.health import kinds as k


class Machine:
    """Files of a kernel, and a clock."""

    def __init__(self, root: Path) -> None:
        self.root, self.now_s = root, 100.0
        self.write("proc/self/cgroup", "0::/job\n")
        self.write("sys/fs/cgroup/job/cpu.stat", "usage_usec 5\nnr_periods 100\nnr_throttled 10\nthrottled_usec 77\n")
        self.write("proc/pressure/cpu", "some avg10=0.00 avg60=0.00 avg300=0.00 total=1000000\n")
        self.write("proc/stat", "cpu  100 0 100 700 0 0 0 100 0 0\ncpu0 1 1 1 1 1 1 1 1 1 1\n")

    def write(self, path: str, text: str) -> None:
        (self.root / path).parent.mkdir(parents=True, exist_ok=True)
        (self.root / path).write_text(text)

    def eyes(self) -> HostCpu:
        return HostCpu(self.root, lambda: self.now_s)


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


@pytest.mark.parametrize(
    ("path", "text", "share", "words"),
    [
        (
            "sys/fs/cgroup/job/cpu.stat",
            "nr_periods 200\nnr_throttled 70\n",
            0.6,
            "the control group was throttled 60% of the time",
        ),
        (
            "proc/pressure/cpu",
            "some avg10=50.00 avg60=0.00 avg300=0.00 total=6000000\nfull avg10=0.00 avg60=0.00 avg300=0.00 total=0\n",
            0.5,
            "processes waited for a processor 50% of the time",
        ),
        (
            "proc/stat",
            "cpu  100 0 100 1400 0 0 0 400 0 0\n",
            0.3,
            "the hypervisor took the processors 30% of the time",
        ),
    ],
)
def test_each_kind_of_shortage_is_told_with_its_share(
    machine: Machine, path: str, text: str, share: float, words: str
) -> None:
    eyes = machine.eyes()
    machine.write(path, text)
    machine.now_s += 10.0
    (signal,) = eyes.poll()
    assert (signal.kind, signal.value, signal.detail) == (k.HOST_CPU, share, words)


def test_a_group_of_its_own_counts_before_the_machine(machine: Machine) -> None:
    machine.write("sys/fs/cgroup/job/cpu.pressure", "some avg10=0.00 avg60=0.00 avg300=0.00 total=0\n")
    eyes = machine.eyes()
    machine.write("proc/pressure/cpu", "some avg10=50.00 avg60=0.00 avg300=0.00 total=9000000\n")
    machine.now_s += 10.0
    assert eyes.poll() == []


def test_what_is_over_is_told_once_and_wobble_is_not(machine: Machine) -> None:
    eyes = machine.eyes()
    told = []
    for total in (5_000_000, 9_400_000, 9_400_000, 9_400_000):
        machine.write("proc/pressure/cpu", f"some avg10=0.00 avg60=0.00 avg300=0.00 total={total}\n")
        machine.now_s += 10.0
        told += [s.value for s in eyes.poll()]
    assert told == [0.4, 0.0]


def test_a_kernel_without_these_files_says_nothing(tmp_path: Path) -> None:
    eyes = HostCpu(tmp_path)
    assert eyes.poll() == []
