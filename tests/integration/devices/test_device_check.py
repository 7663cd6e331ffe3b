"""A device is looked at afresh, on a fake machine, by the processes that read a real one."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from integration.devices.test_dcgm import exporter
from integration.devices.test_device_sources import gpu
from support.fake_machines import fake_machine

from torchrelay.agent.fake_machine.machine import FakeMachine
from torchrelay.agent.health.probes import check as check_module
from torchrelay.agent.health.probes.check import check
from torchrelay.agent.health.probes.places import WatchedPlaces
from torchrelay.protocol.health import kinds as k
from torchrelay.protocol.messages import DeviceChecked

pytestmark = pytest.mark.core


@pytest.fixture
def machine(tmp_path: Path) -> FakeMachine:
    return fake_machine(tmp_path / "machine")


def looked_at(machine: FakeMachine, subject: str) -> DeviceChecked:
    return asyncio.run(check("n0", WatchedPlaces(str(machine.root)).probes(), subject))


def test_healthy_devices_show_nothing(machine: FakeMachine) -> None:
    found = looked_at(machine, "n0")
    assert (found.found, found.signals) == (True, ())


def test_what_is_still_wrong_is_seen(machine: FakeMachine) -> None:
    machine.set(0, "remap-pending", 1)
    machine.port(1, "state", "1: DOWN")
    machine.port(1, "phys_state", "2: Polling")
    found = looked_at(machine, "n0")
    assert {(s.kind, s.device) for s in found.signals} == {(k.REMAP_PENDING, gpu(0)), (k.LINK_DOWN, "mlx5_1/1")}
    assert looked_at(machine, gpu(1)).signals == ()


def test_a_device_that_cannot_be_read_is_not_found(machine: FakeMachine, monkeypatch: pytest.MonkeyPatch) -> None:
    machine.set(1, "lost", 1)
    assert not looked_at(machine, gpu(1)).found
    assert looked_at(machine, gpu(0)).found
    with exporter() as found_elsewhere:
        found_elsewhere.values["DCGM_FI_DEV_PCIE_REPLAY_COUNTER", 1] = 0.0
        both = WatchedPlaces(str(machine.root), dcgm=found_elsewhere.url).probes()
        assert not asyncio.run(check("n0", both, gpu(1))).found, "an exporter can go on about what is lost"
    monkeypatch.setattr(check_module, "LIMIT_S", 3.0)
    machine.hang("nvmlDeviceGetFieldValues")
    found = looked_at(machine, gpu(0))
    assert (found.found, found.message) == (False, "nvidia does not answer")
