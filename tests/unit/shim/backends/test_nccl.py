from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import pytest
import torch.distributed as dist

from torchrelay.protocol.logs.log_lines import LogLines, LogPart
from torchrelay.shim.backends.nccl import Nccl


class Communicator:
    """Plays torch's, whose abort takes as long as it is told to."""

    def __init__(self) -> None:
        self.may_end, self.aborted = threading.Event(), 0

    def abort(self) -> None:
        self.aborted += 1
        assert self.may_end.wait(60)


@pytest.fixture
def stuck(monkeypatch: pytest.MonkeyPatch) -> Iterator[Communicator]:
    monkeypatch.setattr(dist, "ProcessGroupNCCL", Communicator, raising=False)
    made = Communicator()
    yield made
    made.may_end.set()


def test_to_free_returns_at_once_and_an_abort_that_is_stuck_is_said_each_time(stuck: Communicator) -> None:
    nccl = Nccl()
    nccl.free([stuck], LogLines(LogPart.SHIM))
    for _ in range(2):
        with pytest.raises(RuntimeError, match="was not aborted within 0 s"):
            nccl.await_freed(0.01)
    nccl.free([stuck], LogLines(LogPart.SHIM))
    assert stuck.aborted == 1, "it is not aborted again beside the first time"
    stuck.may_end.set()
    nccl.await_freed(60)


def test_one_that_is_stuck_holds_up_no_other(stuck: Communicator) -> None:
    nccl, other = Nccl(), Communicator()
    other.may_end.set()
    nccl.free([stuck, other], LogLines(LogPart.SHIM))
    with pytest.raises(RuntimeError, match="was not aborted"):
        nccl.await_freed(1.0)
    assert other.aborted == 1


def test_what_is_no_communicator_of_nccl_is_left_alone(stuck: Communicator) -> None:
    other: Any = object()
    nccl = Nccl()
    nccl.free([other], LogLines(LogPart.SHIM))
    nccl.await_freed(0.0)
