from __future__ import annotations

import time

import pytest
import torch

from torchrelay.shim.capture.values import device_reads
from torchrelay.shim.capture.values.device_reads import DeviceReads
from torchrelay.shim.step.costs import OwnWork

WAIT_S = 0.2


class OnDevice(torch.Tensor):
    """Stands for a tensor of a device, which this machine may lack."""

    is_cuda = True


def busy() -> None:
    end_s = time.thread_time() + WAIT_S
    while time.thread_time() < end_s:
        pass


def test_a_wait_for_the_device_is_none_of_our_work(monkeypatch: pytest.MonkeyPatch) -> None:
    """CUDA waits with the processor busy."""
    monkeypatch.setattr(device_reads, "await_writes", lambda device: busy())
    reads = DeviceReads()
    reads.take(torch.ones(1).as_subclass(OnDevice))  # a wait of an earlier step
    own = OwnWork(reads)
    reads.take(torch.ones(1).as_subclass(OnDevice))
    assert reads.waited_cpu_s >= 2 * WAIT_S
    assert own.took_cpu_s() < WAIT_S / 2
    busy()
    assert WAIT_S <= own.took_cpu_s() < 2 * WAIT_S
    assert own.took_s() >= WAIT_S


def test_without_a_device_nothing_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(device_reads, "await_writes", lambda device: pytest.fail("it was waited for"))
    reads = DeviceReads()
    reads.take_all({"one": torch.ones(1), "other": torch.ones(2)})
    with reads.ahead([torch.ones(1)]):
        reads.take(torch.ones(1))
    assert reads.waited_s == 0.0
