"""Whose failure is it, that of a rank or that of the one it was connected with?"""

from __future__ import annotations

import threading
from types import SimpleNamespace
from typing import Any

import pytest
import torch.distributed as dist

from torchrelay.protocol.errors import ChannelClosedError, StateMismatchError
from torchrelay.protocol.messages import Abandon, CommunicationFailed, Interrupt
from torchrelay.shim.recovery import survivor
from torchrelay.shim.recovery.survivor import Recovery


@pytest.fixture
def stands(monkeypatch: pytest.MonkeyPatch) -> Recovery:
    monkeypatch.setattr(survivor, "NEWS_S", 60.0)
    waits = SimpleNamespace(watch=lambda generation: None)
    now = SimpleNamespace(number=1)
    comms = SimpleNamespace(now=now, break_all=lambda: 0, break_new=lambda generation: 0, waits=waits)
    engine: Any = SimpleNamespace(comms=comms, keeper=None)
    link: Any = SimpleNamespace(lost=False)
    return Recovery(engine, link)


def told_in_a_moment(stands: Recovery, generation: int) -> threading.Thread:
    thread = threading.Thread(target=stands.handle, args=(Interrupt(generation, "rank 1 is lost"),))
    thread.start()
    return thread


@pytest.mark.parametrize(
    "error",
    [
        RuntimeError("torchrelay: Connection closed in the gate of step 45: the peer is gone"),
        dist.DistNetworkError("Failed to recv, got 0 bytes"),
        ChannelClosedError("the peer closed the tensor channel"),
        ConnectionResetError("connection reset by peer"),
    ],
)
def test_a_connection_that_broke_is_the_other_ends_failure_once_its_loss_is_told(
    stands: Recovery, error: Exception
) -> None:
    thread = told_in_a_moment(stands, 3)
    assert stands.is_of_the_past(2, error)
    thread.join()


def test_a_connection_that_broke_though_nobody_was_lost_is_its_own(
    stands: Recovery, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(survivor, "NEWS_S", 0.01)
    assert not stands.is_of_the_past(2, RuntimeError("Connection closed by peer"))


def test_in_a_move_that_is_abandoned_there_is_no_newer_generation_to_wait_for(stands: Recovery) -> None:
    thread = threading.Thread(target=stands.handle, args=(Abandon(2, "the joiner is lost"),))
    thread.start()
    assert stands.is_of_the_past(2, RuntimeError("Connection closed by peer"))
    assert stands.is_abandoned(2)
    assert not stands.is_abandoned(3)
    thread.join()


def test_other_failures_do_not_wait_for_news(stands: Recovery) -> None:
    assert not stands.is_of_the_past(2, StateMismatchError("two ranks disagree"))
    stands.handle(Interrupt(3, "rank 1 is lost"))
    assert stands.is_of_the_past(2, StateMismatchError("generation 3 was announced while entering 2"))
    assert not stands.is_of_the_past(3, StateMismatchError("two ranks disagree"))


def test_whatever_a_rank_waits_in_is_broken_once_for_each_generation_that_it_hears_of(stands: Recovery) -> None:
    """Where its peers are out of reach nobody else ends its connections."""
    broken: list[int] = []

    def break_all() -> int:
        broken.append(stands.announced)
        return 1

    stands._engine.comms.break_all = break_all  # type: ignore[method-assign]  # in its place for this test
    for generation in (2, 2, 3, 1):
        stands.handle(Interrupt(generation, "rank 1 is lost"))
    assert broken == [2, 3]


def hears(stands: Recovery, error: BaseException) -> bool:
    with stands._news:
        return stands._hear(error)


def test_the_controller_hears_of_a_communication_that_failed_though_nobody_was_lost(
    stands: Recovery, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[Any] = []
    announced: list[threading.Thread] = []

    def send(report: Any) -> None:
        told.append(report)
        announced.append(told_in_a_moment(stands, 2))

    monkeypatch.setattr(stands._link, "send", send, raising=False)
    monkeypatch.setattr(survivor, "NEWS_S", 0.01)
    assert hears(stands, RuntimeError("Connection closed by peer"))
    announced[0].join()
    assert told == [CommunicationFailed("RuntimeError: Connection closed by peer", 0.01)]


def test_it_hears_nothing_of_one_that_a_loss_explains(stands: Recovery, monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[Any] = []
    monkeypatch.setattr(stands._link, "send", told.append, raising=False)
    thread = told_in_a_moment(stands, 2)
    assert hears(stands, RuntimeError("Connection closed by peer"))
    thread.join()
    assert told == []
