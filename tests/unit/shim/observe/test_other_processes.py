"""A step that reads what another process sends is noticed; workers of a data loader are not meant."""

from __future__ import annotations

import multiprocessing
import threading
from multiprocessing import connection
from types import FrameType, SimpleNamespace
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset

from torchrelay.shim.observe.other_processes import OtherProcesses
from torchrelay.shim.script.guard import Guard


@pytest.fixture
def engine(monkeypatch: pytest.MonkeyPatch) -> Any:
    cls: Any = connection._ConnectionBase
    for name in ("recv", "recv_bytes", "recv_bytes_into"):
        monkeypatch.setattr(cls, name, getattr(cls, name))  # put back in the end
    main = threading.get_ident()
    made: Any = SimpleNamespace(
        commit=object(), guard=Guard(lambda: None), takes_part=lambda: threading.get_ident() == main, read_at=[]
    )

    def others_are_read(frame: FrameType, what: str) -> None:
        made.reporter.reads_from_others = frame.f_code.co_name
        made.read_at.append(frame.f_code.co_name)

    made.reporter = SimpleNamespace(reads_from_others=None, others_are_read=others_are_read)
    OtherProcesses(made).install()
    return made


def _ask(pipe: Any) -> Any:
    return pipe.recv()


def test_a_message_is_told_once_with_who_asks(engine: Any) -> None:
    ours, theirs = multiprocessing.Pipe()
    theirs.send("a")
    theirs.send("b")
    assert (_ask(ours), _ask(ours)) == ("a", "b")
    assert engine.read_at == ["_ask"]


def test_a_queue_is_read_by_who_asks_it(engine: Any) -> None:
    queue: Any = multiprocessing.SimpleQueue()
    queue.put(1)
    assert queue.get() == 1
    assert engine.read_at == ["test_a_queue_is_read_by_who_asks_it"]


def test_nothing_is_told_before_there_is_a_boundary(engine: Any) -> None:
    engine.commit = None
    ours, theirs = multiprocessing.Pipe()
    theirs.send("a")
    assert _ask(ours) == "a"
    assert engine.read_at == []


def test_workers_of_a_loader_are_followed_elsewhere(engine: Any) -> None:
    loader = DataLoader(TensorDataset(torch.arange(4.0)), num_workers=1)
    assert len([*loader]) == 4
    assert engine.read_at == []


def test_a_pool_tells_by_a_thread(engine: Any) -> None:
    with multiprocessing.get_context("fork").Pool(1) as pool:
        assert pool.apply(abs, (-3,)) == 3
    assert engine.read_at == []


def test_an_end_of_the_pipe_is_the_scripts_affair(engine: Any) -> None:
    ours, theirs = multiprocessing.Pipe()
    theirs.close()
    with pytest.raises(EOFError):
        _ask(ours)
