from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from torchrelay.protocol.messages import FaultInjected, MigrationWanted
from torchrelay.protocol.options.faults import DEVICE_KINDS, Fault, FaultKind
from torchrelay.shim.observe import fault_injection
from torchrelay.shim.observe.fault_injection import FaultInjector


class FakeLink:
    def __init__(self) -> None:
        self.told: list[Any] = []

    def send(self, report: Any) -> None:
        self.told.append(report)

    send_and_wait = send


def injector(*faults: Fault, step: int = 5) -> tuple[FaultInjector, FakeLink]:
    link = FakeLink()
    return FaultInjector(faults, link, lambda: step), link  # type: ignore[arg-type]  # a stand-in


@pytest.mark.parametrize(("kind", "number"), [("kill", signal.SIGKILL), ("stop", signal.SIGSTOP)])
def test_a_fault_is_told_before_it_strikes(kind: str, number: int, monkeypatch: pytest.MonkeyPatch) -> None:
    faults, link = injector(Fault(kind, 1, 5, "gate"))
    struck: list[tuple[int, int, int]] = []
    monkeypatch.setattr(os, "kill", lambda pid, sig: struck.append((pid, sig, len(link.told))))
    faults.at("gate")
    assert struck == [(os.getpid(), number, 1)]
    assert link.told == [FaultInjected(f"{kind}:rank=1,step=5,phase=gate", 4)]


@pytest.mark.parametrize(("phase", "step"), [("forward", 5), ("gate", 4), ("gate", 6)])
def test_no_fault_strikes_in_another_phase_or_step(phase: str, step: int) -> None:
    faults, link = injector(Fault(FaultKind.RAISE, 1, 5, "gate"), step=step)
    faults.at(phase)
    assert link.told == []
    assert faults.armed


@pytest.mark.parametrize("step", [5, 9, None])
def test_a_fault_of_a_migration_strikes_in_the_first_one_from_its_step_on(
    step: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    faults, link = injector(Fault(FaultKind.KILL, 1, 5, "rebuild"))
    struck: list[int] = []
    monkeypatch.setattr(os, "kill", lambda pid, sig: struck.append(sig))
    faults.in_migration("rebuild", 4)
    faults.in_migration("verify", step)
    assert struck == []
    faults.in_migration("rebuild", step)
    faults.in_migration("rebuild", step)
    assert struck == [signal.SIGKILL]
    assert link.told == [FaultInjected("kill:rank=1,step=5,phase=rebuild", 4)]


def test_a_fault_strikes_once() -> None:
    faults, link = injector(Fault(FaultKind.RAISE, 0, 5), Fault(FaultKind.EXIT, 0, 5, "optimizer", 3))
    with pytest.raises(RuntimeError, match="injected by torchrelay: raise:rank=0,step=5,phase=forward"):
        faults.at("forward")
    faults.at("forward")
    with pytest.raises(SystemExit) as ended:
        faults.at("optimizer")
    assert ended.value.code == 3
    assert not faults.armed
    assert len(link.told) == 2


def test_a_planned_migration_is_asked_for_at_the_head_of_the_step() -> None:
    faults, link = injector(Fault(FaultKind.PLANNED, 2, 5, "backward"))
    faults.at("backward")
    assert link.told == []
    faults.at("head")
    assert [type(report) for report in link.told] == [FaultInjected, MigrationWanted]


def test_a_straggler_takes_as_many_times_as_long_for_its_own_part_of_each_step(monkeypatch: pytest.MonkeyPatch) -> None:
    clock, slept = {"now": 0.0, "waited": 0.0}, list[float]()

    def sleep(seconds: float) -> None:
        slept.append(seconds)
        clock["now"] += seconds

    monkeypatch.setattr(fault_injection.time, "monotonic", lambda: clock["now"])
    monkeypatch.setattr(fault_injection.time, "sleep", sleep)
    link, step = FakeLink(), [5]
    fault = Fault(FaultKind.STRAGGLER, 1, 5, slow=3.0)
    faults = FaultInjector((fault,), link, lambda: step[0], waited_s=lambda: clock["waited"])  # type: ignore[arg-type]  # a stand-in
    faults.at("forward")
    for step[0] in (6, 7):
        clock["now"] += 10.0
        clock["waited"] += 8.0
        faults.at("head")
    assert slept == [4.0, 4.0], "two seconds of its own, three times as long"
    assert link.told == [FaultInjected("straggler:rank=1,step=5,phase=forward,slow=3x", 4)]


@pytest.mark.parametrize("kind", DEVICE_KINDS)
def test_a_fault_of_a_device_is_told_and_the_process_goes_on(kind: str) -> None:
    faults, link = injector(Fault(kind, 1, 5))
    faults.at("forward")
    assert [type(report) for report in link.told] == [FaultInjected]


def test_a_partition_cuts_off_every_connection_and_the_process_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    found, dropped = {"socket:[1]": 11, "socket:[2]": 12}, list[int]()
    asked: list[object] = []

    @contextmanager
    def connections(wanted: object = None) -> Iterator[dict[str, int]]:
        asked.append(wanted)
        yield found

    monkeypatch.setattr(fault_injection.tcp, "connections", connections)
    monkeypatch.setattr(fault_injection.tcp, "drop_all", dropped.append)
    faults, link = injector(Fault(FaultKind.PARTITION, 1, 5, "backward"))
    faults.at("backward")
    assert (asked, dropped) == ([None], [11, 12])
    assert link.told == [FaultInjected("partition:rank=1,step=5,phase=backward", 4)]
