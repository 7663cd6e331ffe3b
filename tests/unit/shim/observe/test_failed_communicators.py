"""A communicator that has failed by itself is told of, once it is clear that no peer's loss is the cause."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from torchrelay.protocol.messages import CommunicationFailed
from torchrelay.shim.observe import failed_communicators
from torchrelay.shim.observe.failed_communicators import FailedCommunicators

FAILED = "a communicator of NCCL has failed"


class Rank:
    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now_s = 100.0
        monkeypatch.setattr(failed_communicators.time, "monotonic", lambda: self.now_s)
        self.generation = SimpleNamespace(number=1, broken=False)
        self.reason = FAILED
        self.told: list[Any] = []
        comms: Any = SimpleNamespace(now=self.generation, failure=lambda: self.reason)
        link: Any = SimpleNamespace(send=self.told.append)
        self.watch = FailedCommunicators(comms, link)

    def look_after(self, seconds: float) -> list[Any]:
        self.now_s += seconds
        self.watch.look()
        return self.told


@pytest.fixture
def rank(monkeypatch: pytest.MonkeyPatch) -> Rank:
    return Rank(monkeypatch)


def test_a_failed_communicator_is_told_once_when_no_loss_was_heard_of_for_some_time(rank: Rank) -> None:
    assert rank.look_after(0) == []
    assert rank.look_after(9) == []
    assert rank.look_after(2) == [CommunicationFailed(FAILED, 11.0)]
    assert len(rank.look_after(60)) == 1


def test_nothing_is_told_where_a_loss_explains_it(rank: Rank) -> None:
    rank.look_after(0)
    rank.generation.broken = True
    assert rank.look_after(60) == []
    rank.generation.number, rank.generation.broken = 2, False
    assert rank.look_after(60) == [], "that of the next generation has its own time"
    assert rank.look_after(11) == [CommunicationFailed(FAILED, 11.0)]


def test_nothing_is_told_of_communicators_that_are_well(rank: Rank) -> None:
    rank.reason = ""
    rank.look_after(0)
    assert rank.look_after(60) == []
