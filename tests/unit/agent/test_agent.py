"""What every agent does with orders and reports, whatever processes it has."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import grpc.aio
import pytest

from torchrelay.agent.agent import Agent, AgentPlace
from torchrelay.agent.connections.shim_server import ShimEvents, ShimServer
from torchrelay.agent.connections.standing import AgentStanding
from torchrelay.agent.journals.journal_keeper import JournalKeeper
from torchrelay.protocol import messages as msg
from torchrelay.protocol.messages import WorkerProgress
from torchrelay.protocol.names import MAX_MESSAGE_BYTES, WorkerId

HERE, ELSEWHERE = WorkerId("n0.w0"), WorkerId("n1.w0")


class NoController:
    def channel(self, target: str) -> grpc.aio.Channel:
        raise AssertionError("nobody is to be asked")


class OneProcess:
    """A place with one process that takes no order as it is."""

    def __init__(self) -> None:
        self.its = AgentStanding()
        self.told: list[Any] = []
        self.forgotten: list[WorkerId] = []

    def hello(self) -> msg.AgentHello:
        return msg.AgentHello("n0", 0, "127.0.0.1", ())

    def samples(self) -> list[Any]:
        return []

    def knows(self, worker: str) -> bool:
        return worker == HERE

    def pid_of(self, worker: WorkerId) -> int | None:
        return 70 if worker == HERE else None

    def standing(self, worker: WorkerId) -> AgentStanding | None:
        return self.its if worker == HERE else None

    def standings(self) -> dict[WorkerId, AgentStanding]:
        return {HERE: self.its}

    def prepared(self, worker: WorkerId, order: Any) -> None:
        self.told.append(order)

    def forget(self, worker: WorkerId) -> None:
        self.forgotten.append(worker)

    def look(self, now_s: float) -> tuple[WorkerProgress, ...]:
        return ()

    def govern_alone(self) -> None:
        pass


def with_agent(folder: Path, test: Callable[[Agent, OneProcess], None]) -> None:
    async def run() -> None:
        host = OneProcess()
        shims = ShimServer(folder / "sock", {}, ShimEvents(lambda *_: None, lambda *_: None))
        place = AgentPlace("127.0.0.1:1", "127.0.0.1", "127.0.0.1", 0, 60.0)
        agent = Agent(place, host, NoController(), shims, JournalKeeper(folder), {})
        test(agent, host)

    asyncio.run(run())


def test_what_is_meant_for_a_process_of_another_place_harms_nothing(tmp_path: Path) -> None:
    def test(agent: Agent, host: OneProcess) -> None:
        check = msg.ReplicaCheck(3, {"weight": "aa"})
        for worker in (ELSEWHERE, HERE):
            agent.ordered(msg.Inherits(worker, (check,)))
            agent.ordered(msg.ToWorker(worker, msg.Commit(4)))
        assert host.told == [msg.Commit(4)]
        assert host.its.in_force == 4
        assert check in host.its.said.all()

    with_agent(tmp_path, test)


def test_a_controller_that_is_new_is_told_what_processes_have_said(tmp_path: Path) -> None:
    def test(agent: Agent, host: OneProcess) -> None:
        agent.reported(HERE, msg.Armed(0, 2, "gloo", "2.13"))
        assert agent.session.waiting == 1
        agent.ordered(msg.TellAgain())
        assert agent.session.waiting == 2

    with_agent(tmp_path, test)


def test_what_is_too_large_to_be_sent_is_said_and_ends_nothing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    def test(agent: Agent, host: OneProcess) -> None:
        agent.tell(msg.JournalContent(HERE, {1: bytes(MAX_MESSAGE_BYTES)}))
        assert agent.session.waiting == 0

    with caplog.at_level(logging.ERROR):
        with_agent(tmp_path, test)
    assert "is larger than a message may be" in caplog.text


def test_the_first_word_of_an_end_counts(tmp_path: Path) -> None:
    def test(agent: Agent, host: OneProcess) -> None:
        agent.ordered(msg.StopJob(3, 15, "the first"))
        agent.stop(msg.StopJob(4, 15, "another"))
        assert agent.stopped.result().reason == "the first"

    with_agent(tmp_path, test)


def test_the_place_forgets_what_nobody_needs_any_more(tmp_path: Path) -> None:
    def test(agent: Agent, host: OneProcess) -> None:
        agent.ordered(msg.ForgetJournals(HERE))
        assert host.forgotten == [HERE]

    with_agent(tmp_path, test)
