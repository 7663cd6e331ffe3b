"""A process that its agent did not start asks what it is."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from torchrelay.protocol.errors import RefusedError
from torchrelay.protocol.messages import Ack, Begin, Hello, MayFinish
from torchrelay.protocol.transport import wire
from torchrelay.shim.agent_link.ask import ask
from torchrelay.shim.agent_link.config import ShimConfig

ENVIRON = {
    "TORCHRELAY_WORKER": "train-1",
    "TORCHRELAY_TOKEN": "t",
    "TORCHRELAY_JOURNAL": "/run/torchrelay/journal",
    "TORCHRELAY_ASK": "1",
}


def config(path: Path) -> ShimConfig:
    launch = {"RANK": "1", "WORLD_SIZE": "2", "HOME": "/root"}
    return ShimConfig.from_environ({**ENVIRON, "TORCHRELAY_SOCKET": str(path)}, launch)


class Agent:
    """Answers one process; `orders` are sent after the Ack."""

    def __init__(self, path: Path, *orders: object) -> None:
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(str(path))
        self._listener.listen()
        self.hello: Hello | None = None
        self.done = threading.Event()
        self._thread = threading.Thread(target=self._serve, args=orders)
        self._thread.start()

    def _serve(self, *orders: object) -> None:
        connection, _ = self._listener.accept()
        self.hello = wire.receive(connection, wire.REPORTS)
        connection.sendall(b"".join(map(wire.encode, (Ack(), *orders))))
        self.done.wait(20)
        connection.close()
        self._listener.close()

    def close(self) -> None:
        self.done.set()
        self._thread.join()


@pytest.fixture
def agent(tmp_path: Path) -> Callable[..., Agent]:
    return lambda *orders: Agent(tmp_path / "s", *orders)


def test_a_process_becomes_what_the_agents_answer_says(tmp_path: Path, agent: Callable[..., Agent]) -> None:
    served = agent(Begin("train-1:aa.2", "/run/torchrelay/journal/2", True, kept="/run/torchrelay-kept/1"))
    told, link = ask(config(tmp_path / "s"))
    served.close()
    assert told.kept == "/run/torchrelay-kept/1"
    assert (told.worker, told.journal, told.spare) == ("train-1:aa.2", "/run/torchrelay/journal/2", True)
    assert not link.lost
    link.close()
    assert served.hello is not None
    assert served.hello.launch == {"RANK": "1", "WORLD_SIZE": "2"}


def test_an_agent_that_comes_later_is_waited_for(tmp_path: Path) -> None:
    made: list[Agent] = []
    timer = threading.Timer(0.3, lambda: made.append(Agent(tmp_path / "s", Begin("w", "j", False))))
    timer.start()
    told, link = ask(config(tmp_path / "s"))
    link.close()
    timer.join()
    made[0].close()
    assert told.worker == "w"


def test_without_an_agent_it_gives_up(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        ask(config(tmp_path / "s"), agent_s=0.1)


def test_without_an_answer_it_gives_up(tmp_path: Path, agent: Callable[..., Agent]) -> None:
    served = agent()
    with pytest.raises(RefusedError, match="what this process is to be"):
        ask(config(tmp_path / "s"), answer_s=0.2)
    served.close()


def test_another_order_is_no_answer(tmp_path: Path, agent: Callable[..., Agent]) -> None:
    served = agent(MayFinish())
    with pytest.raises(RefusedError, match="MayFinish"):
        ask(config(tmp_path / "s"))
    served.close()
