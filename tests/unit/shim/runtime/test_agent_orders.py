"""What an agent tells a process."""

from __future__ import annotations

import typing
from types import SimpleNamespace
from typing import Any

import pytest

from torchrelay.protocol import messages
from torchrelay.protocol.messages import (
    Ack,
    Assign,
    ClearCheckpoints,
    EndNow,
    Explain,
    Interrupt,
    MayFinish,
    Ping,
    Protect,
    SetAside,
)
from torchrelay.shim.agent_link import announced_exit, start_over
from torchrelay.shim.agent_link.config import ShimConfig
from torchrelay.shim.join.spare import Spare
from torchrelay.shim.runtime.agent_orders import AgentOrders


class Link:
    """Keeps what is sent."""

    def __init__(self) -> None:
        self.sent: list[Any] = []

    def send(self, report: Any) -> None:
        self.sent.append(report)


class Followed:
    """An engine that keeps what it is told."""

    def __init__(self) -> None:
        self.told: list[Any] = []
        self.recovery = SimpleNamespace(handle=self.told.append)


@pytest.mark.parametrize(("again", "how"), [(False, "leaves"), (True, "begins anew")])
def test_a_process_leaves_or_begins_anew_in_its_place(monkeypatch: pytest.MonkeyPatch, again: bool, how: str) -> None:
    done: list[tuple[str, int]] = []
    monkeypatch.setattr(announced_exit, "leave", lambda code: done.append(("leaves", code)))
    monkeypatch.setattr(start_over, "start_over", lambda start, code, log: done.append(("begins anew", code)))
    orders = AgentOrders(ShimConfig("", "", "", "", False, "", (), ()), Link(), Spare(lambda report: None))  # type: ignore[arg-type]  # a stand-in
    orders.handle(EndNow(77, again=again))
    assert done == [(how, 77)]


def test_orders_that_come_before_there_is_an_engine_are_followed_in_their_order_once_there_is_one() -> None:
    config = ShimConfig("", "", "", "", False, "", (), ())
    orders = AgentOrders(config, Link(), Spare(lambda report: None))  # type: ignore[arg-type]  # a stand-in
    engine: Any = Followed()
    orders.handle(Interrupt(1, "lost"))
    orders.handle(Interrupt(2, "lost"))
    assert engine.told == []
    orders.followed_by(engine)
    orders.handle(Interrupt(3, "lost"))
    assert engine.told == [Interrupt(1, "lost"), Interrupt(2, "lost"), Interrupt(3, "lost")]


def test_what_a_spare_is_told_goes_to_the_spare_and_to_no_engine() -> None:
    spare, engine = Spare(lambda report: None), Followed()
    orders = AgentOrders(ShimConfig("", "", "", "", False, "", (), ()), Link(), spare)  # type: ignore[arg-type]  # a stand-in
    orders.followed_by(engine)  # type: ignore[arg-type]  # a stand-in
    order = Assign(3, 1, 2, {}, b"")
    orders.handle(order)
    assert spare.assign is order
    assert engine.told == []


def test_each_order_has_somebody_to_take_it() -> None:
    """What the process does not take itself is one that an engine follows."""
    taken_here = {Ack, ClearCheckpoints, EndNow, Explain, MayFinish, Ping, Protect, SetAside}
    others = set(typing.get_args(messages.SpareOrder)) | set(typing.get_args(messages.MigrationOrder))
    assert taken_here | others == set(typing.get_args(messages.ShimOrder))
