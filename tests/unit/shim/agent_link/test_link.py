from __future__ import annotations

import dataclasses
import os
import queue
import socket
import threading
from pathlib import Path
from typing import Any

import pytest
from support.fake_agent import FakeAgent

from torchrelay.protocol.errors import ChannelClosedError
from torchrelay.protocol.messages import Armed, FaultInjected, Finishing, Hello, MayFinish, Protect, Warm
from torchrelay.protocol.transport import wire
from torchrelay.shim.agent_link.link import AgentLink

HELLO = Hello("n0.w0", "token", 1, "3.11.0", False)


def test_the_first_message_is_hello_and_orders_come_in_order(tmp_path: Path) -> None:
    orders: queue.Queue[Any] = queue.Queue()
    with FakeAgent(tmp_path / "agent.sock") as agent:
        link = AgentLink.connect(str(tmp_path / "agent.sock"), HELLO)
        link.start(orders.put, lambda: None)
        link.send(Warm("2.13"))
        link.send(Finishing(3))
        assert orders.get(timeout=30) == MayFinish()
        assert agent.reports == [HELLO, Warm("2.13"), Finishing(3)]
        link.close_in_child()


def test_a_fault_is_not_struck_before_the_agent_has_heard_of_it(tmp_path: Path) -> None:
    with FakeAgent(tmp_path / "agent.sock") as agent:
        link = AgentLink.connect(str(tmp_path / "agent.sock"), HELLO)
        link.start(lambda order: None, lambda: None)
        link.send_and_wait(FaultInjected("kill:rank=0,step=1,phase=data", 0))
        assert agent.reports[-1] == FaultInjected("kill:rank=0,step=1,phase=data", 0)
        link.close_in_child()


def test_an_agent_that_closes_the_connection_refuses(tmp_path: Path) -> None:
    with FakeAgent(tmp_path / "agent.sock", refuse=True), pytest.raises(ChannelClosedError):
        AgentLink.connect(str(tmp_path / "agent.sock"), HELLO)


def test_no_agent_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="No such file"):
        AgentLink.connect(str(tmp_path / "agent.sock"), HELLO)


@pytest.fixture
def ends() -> Any:
    ours, theirs = socket.socketpair()
    yield AgentLink(ours), theirs
    ours.close()
    theirs.close()


def test_without_its_agent_a_rank_goes_on_and_its_reports_are_dropped(ends: Any) -> None:
    link, theirs = ends
    theirs.close()
    gone = threading.Event()
    link.start(lambda order: None, gone.set)
    assert gone.wait(30)
    assert link.lost
    link.send(Warm("2.13"))
    link.send_and_wait(FaultInjected("x", 0))


def test_garbage_from_the_agent_ends_the_link_and_nothing_else(ends: Any) -> None:
    link, theirs = ends
    heard: list[Any] = []
    gone = threading.Event()
    link.start(heard.append, gone.set)
    theirs.sendall(wire.encode(Protect(True, "")) + b"\xff" * 64)
    assert gone.wait(30)
    assert link.lost
    assert heard == [Protect(True, "")]


def test_a_forked_child_does_not_speak_for_its_parent(ends: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    link, theirs = ends
    monkeypatch.setattr(os, "getpid", lambda: -1)
    link.send(Warm("2.13"))
    theirs.setblocking(False)
    with pytest.raises(BlockingIOError):
        theirs.recv(1)


def again() -> Hello:
    return dataclasses.replace(HELLO, again=True, generation=2)


def test_an_agent_that_is_started_anew_hears_what_still_holds(tmp_path: Path) -> None:
    path, lost = tmp_path / "agent.sock", threading.Event()
    orders: queue.Queue[Any] = queue.Queue()
    with FakeAgent(path) as agent:
        link = AgentLink.connect(str(path), HELLO)
        link.start(orders.put, lost.set, again)
        link.send(Armed(0, 2, "gloo", ""))
        link.send(Warm("2.13"))
        link.send(Warm("2.14"))
        agent.until(lambda: len(agent.reports) == 4)
        agent.die()
    path.unlink(missing_ok=True)
    link.send(Finishing(3))  # nobody is there to hear it
    with FakeAgent(path) as agent:
        agent.until(lambda: Finishing(3) in agent.reports)
        assert agent.reports == [again(), Warm("2.14"), Armed(0, 2, "gloo", ""), Finishing(3)]
        assert orders.get(timeout=30) == MayFinish()
        assert not link.lost
        assert not lost.is_set()
        link.close_in_child()
        agent.die()


def test_an_agent_that_stays_away_is_gone_for_good(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torchrelay.shim.agent_link.link.AGAIN_S", 0.3)
    path, lost = tmp_path / "agent.sock", threading.Event()
    with FakeAgent(path) as agent:
        link = AgentLink.connect(str(path), HELLO)
        link.start(lambda order: None, lost.set, again)
        agent.die()
        assert lost.wait(30)
        assert link.lost
        link.close()
