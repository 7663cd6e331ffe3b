"""Whose failure is it, that of a rank or that of the one it was connected with?"""

from __future__ import annotations

import threading
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch.distributed as dist

from torchrelay.protocol.errors import ChannelClosedError, StateMismatchError
from torchrelay.protocol.messages import (
    Abandon,
    CommunicationFailed,
    Interrupt,
    MigrationOrder,
    QuiesceAt,
    QuiesceDecided,
    Rebuild,
    Serve,
)
from torchrelay.protocol.words.positions import StandingPosition
from torchrelay.shim.recovery import new_generation, survivor
from torchrelay.shim.recovery.generation_switch import GenerationSwitch, NextMove
from torchrelay.shim.recovery.survivor import SurvivorRecovery


@pytest.fixture
def stands(monkeypatch: pytest.MonkeyPatch) -> SurvivorRecovery:
    monkeypatch.setattr(survivor, "NEWS_S", 60.0)
    waits = SimpleNamespace(watch=lambda generation: None)
    now = SimpleNamespace(number=1)
    comms = SimpleNamespace(now=now, break_all=lambda: 0, break_new=lambda generation: 0, waits=waits)
    engine: Any = SimpleNamespace(comms=comms, keeper=None)
    link: Any = SimpleNamespace(lost=False)
    return SurvivorRecovery(engine, link)


def told_in_a_moment(stands: SurvivorRecovery, generation: int) -> threading.Thread:
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
    stands: SurvivorRecovery, error: Exception
) -> None:
    thread = told_in_a_moment(stands, 3)
    assert stands.is_of_the_past(2, error)
    thread.join()


def test_a_connection_that_broke_though_nobody_was_lost_is_its_own(
    stands: SurvivorRecovery, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(survivor, "NEWS_S", 0.01)
    assert not stands.is_of_the_past(2, RuntimeError("Connection closed by peer"))


def test_in_a_move_that_is_abandoned_there_is_no_newer_generation_to_wait_for(stands: SurvivorRecovery) -> None:
    thread = threading.Thread(target=stands.handle, args=(Abandon(2, "the joiner is lost"),))
    thread.start()
    assert stands.is_of_the_past(2, RuntimeError("Connection closed by peer"))
    assert stands.is_abandoned(2)
    assert not stands.is_abandoned(3)
    thread.join()


def test_other_failures_do_not_wait_for_news(stands: SurvivorRecovery) -> None:
    assert not stands.is_of_the_past(2, StateMismatchError("two ranks disagree"))
    stands.handle(Interrupt(3, "rank 1 is lost"))
    assert stands.is_of_the_past(2, StateMismatchError("generation 3 was announced while entering 2"))
    assert not stands.is_of_the_past(3, StateMismatchError("two ranks disagree"))


def test_whatever_a_rank_waits_in_is_broken_once_for_each_generation_that_it_hears_of(stands: SurvivorRecovery) -> None:
    """Where its peers are out of reach nobody else ends its connections."""
    broken: list[int] = []

    def break_all() -> int:
        broken.append(stands.announced)
        return 1

    stands._engine.comms.break_all = break_all  # type: ignore[method-assign]  # in its place for this test
    for generation in (2, 2, 3, 1):
        stands.handle(Interrupt(generation, "rank 1 is lost"))
    assert broken == [2, 3]


def hears(stands: SurvivorRecovery, error: BaseException) -> bool:
    with stands._news:
        return stands._hear(error)


def test_the_controller_hears_of_a_communication_that_failed_though_nobody_was_lost(
    stands: SurvivorRecovery, monkeypatch: pytest.MonkeyPatch
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


def test_the_script_hears_nothing_of_an_error_that_a_loss_explains(
    stands: SurvivorRecovery, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[Any] = []
    monkeypatch.setattr(stands._link, "send", told.append, raising=False)
    thread = told_in_a_moment(stands, 2)
    assert hears(stands, RuntimeError("Connection closed by peer"))
    thread.join()
    assert told == []


class Meanwhile(threading.Condition):
    """Whoever waits wakes up only when all that is to be told has been told."""

    def __init__(self, tell: Callable[[], None]) -> None:
        super().__init__()
        self._tell = tell

    def wait_for(self, predicate: Callable[[], Any], timeout: float | None = None) -> Any:
        self.release()
        self._tell()
        self.acquire()
        return predicate()


def test_a_rank_that_waits_where_not_all_can_stop_goes_on_to_the_later_step(stands: SurvivorRecovery) -> None:
    """It may wake up only after the second question, and the answer to that."""
    sent: list[Any] = []
    stands._link.send = sent.append  # type: ignore[method-assign]  # in its place for this test
    stands._engine.commit = SimpleNamespace(boundary=414)  # type: ignore[assignment]  # a played one
    stands.handle(QuiesceAt(1, 2, 417))

    orders: list[MigrationOrder] = [QuiesceDecided(1, False), QuiesceAt(2, 2, 424), QuiesceDecided(2, True)]

    def tell() -> None:
        while orders:
            stands.handle(orders.pop(0))

    stands._news = Meanwhile(tell)
    assert not stands.wanted_at_head(417)
    assert stands.wanted_at_head(424)
    assert [answer.accepted for answer in sent] == [True, True]


def test_a_rank_that_is_about_to_stand_in_a_move_that_was_just_given_up_follows_that_generation(
    stands: SurvivorRecovery,
) -> None:
    """Its orders are there already, and say that it goes on."""
    stands._link.send = lambda report: None  # type: ignore[method-assign]  # in its place for this test
    stands._engine.commit = SimpleNamespace(boundary=414)  # type: ignore[assignment]  # a played one
    stands.handle(QuiesceAt(1, 2, 417))
    stands.handle(QuiesceDecided(1, True))
    assert stands.wanted_at_head(417)
    stands.handle(Abandon(2, "the spare is lost"))
    assert stands._generation(None) == 2
    assert stands.next_order(2) == Abandon(2, "the spare is lost")


@pytest.mark.parametrize("exchanged", [False, True])
def test_a_rank_makes_reducers_anew_after_a_move_that_was_given_up_only_where_all_do(
    exchanged: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Others may not even have stood: a new reducer in one rank alone waits for theirs in its first step."""
    done: list[str] = []
    monkeypatch.setattr(new_generation, "rebuild", lambda *given, **more: done.append("exchange"))
    engine: Any = SimpleNamespace(
        keeper=None,
        comms=SimpleNamespace(go_back=lambda: done.append("go back")),
        saves=SimpleNamespace(abandoned=lambda: None),
        layouts=SimpleNamespace(abandoned=lambda: done.append("reducers")),
        link=None,
    )
    orders: list[Any] = [Rebuild(2, 417, "host", 1)] if exchanged else [Serve(2, 417, "token", "")]
    orders.append(Abandon(2, "the spare is lost"))
    recovery: Any = SimpleNamespace(next_order=lambda generation: orders.pop(0))
    switch = GenerationSwitch(engine, recovery, 2, StandingPosition.HEAD, "")
    monkeypatch.setattr(switch, "_say", lambda: None)
    monkeypatch.setattr(switch, "_serve", lambda order: done.append("serve"))
    assert switch.follow() == (NextMove.ABANDONED, 0)
    assert done == (["exchange", "go back", "reducers"] if exchanged else ["serve"])
