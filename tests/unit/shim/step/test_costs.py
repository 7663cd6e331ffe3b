from __future__ import annotations

import time
from types import SimpleNamespace

import pytest
import torch

from torchrelay.shim.step.costs import OwnWork

WAIT_S = 0.2


def busy() -> None:
    end_s = time.thread_time() + WAIT_S
    while time.thread_time() < end_s:
        pass


def test_a_wait_for_the_device_is_none_of_our_work(monkeypatch: pytest.MonkeyPatch) -> None:
    """CUDA waits with the processor busy."""
    waits: list[float] = []

    def synchronize() -> None:
        busy()
        waits.append(WAIT_S)

    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda: SimpleNamespace(synchronize=synchronize))
    own = OwnWork()
    assert waits == [WAIT_S]
    assert own.took_cpu_s() < WAIT_S / 2
    busy()
    assert own.took_cpu_s() >= WAIT_S
    assert own.took_s() >= WAIT_S


def test_without_a_device_nothing_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: False)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda: pytest.fail("it was waited for"))
    OwnWork()
