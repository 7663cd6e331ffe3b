from __future__ import annotations

import os
import signal
from typing import Any

import pytest

from torchrelay.protocol.faults import Fault
from torchrelay.protocol.messages import FaultInjected, MigrationWanted
from torchrelay.shim.fault_injection import FaultInjector


class FakeLink:
    def __init__(self) -> None:
        self.told: list[Any] = []

    def send(self, report: Any) -> None:
        self.told.append(report)

    send_and_wait = send


def injector(*faults: Fault, step: int = 5) -> tuple[FaultInjector, FakeLink]:
    link = FakeLink()
    return FaultInjector(faults, link, lambda: step), link  # type: ignore[arg-type]


@pytest.mark.parametrize(("kind", "number"), [("kill", signal.SIGKILL), ("stop", signal.SIGSTOP)])
def test_a_fault_is_told_before_it_strikes(kind: str, number: int, monkeypatch: pytest.MonkeyPatch) -> None:
    faults, link = injector(Fault(kind, 1, 5, "gate"))
    struck: list[tuple[int, int, int]] = []
    monkeypatch.setattr(os, "kill", lambda pid, sig: struck.append((pid, sig, len(link.told))))
    faults.at("gate")
    assert struck == [(os.getpid(), number, 1)]
    assert link.told == [FaultInjected(f"{kind}:rank=1,step=5,phase=gate", 4)]


@pytest.mark.parametrize(("phase", "step"), [("forward", 5), ("gate", 4), ("gate", 6)])
def test_elsewhere_nothing_happens(phase: str, step: int) -> None:
    faults, link = injector(Fault("raise", 1, 5, "gate"), step=step)
    faults.at(phase)
    assert link.told == []
    assert faults.armed


def test_a_fault_strikes_once() -> None:
    faults, link = injector(Fault("raise", 0, 5), Fault("exit", 0, 5, "optimizer", 3))
    with pytest.raises(RuntimeError, match="injected by torchrelay: raise:rank=0,step=5,phase=forward"):
        faults.at("forward")
    faults.at("forward")
    with pytest.raises(SystemExit) as ended:
        faults.at("optimizer")
    assert ended.value.code == 3
    assert not faults.armed
    assert len(link.told) == 2


def test_a_planned_migration_is_asked_for_at_the_head_of_the_step() -> None:
    faults, link = injector(Fault("planned", 2, 5, "backward"))
    faults.at("backward")
    assert link.told == []
    faults.at("head")
    assert [type(report) for report in link.told] == [FaultInjected, MigrationWanted]
