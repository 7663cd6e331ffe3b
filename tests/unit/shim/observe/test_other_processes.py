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

from torchrelay.shim.observe.other_processes import _READS, _WRITES, OtherProcesses
from torchrelay.shim.script.guard import Guard


@pytest.fixture
def engine(monkeypatch: pytest.MonkeyPatch) -> Any:
    reads: list[tuple[Any, str]] = [(connection._ConnectionBase, name) for name in _READS]
    for cls, name in (*reads, *_WRITES):
        monkeypatch.setattr(cls, name, getattr(cls, name))  # put back in the end
    main = threading.get_ident()
    led: list[Any] = []
    made: Any = SimpleNamespace(
        commit=object(),
        guard=Guard(lambda: None),
        takes_part=lambda: threading.get_ident() == main,
        on_training_thread=lambda: threading.get_ident() == main,
        draws=SimpleNamespace(counted=None),
        trees=SimpleNamespace(led=SimpleNamespace(want_itself=led.append)),
        led=led,
        read_at=[],
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


def test_what_an_iterator_takes_in_that_is_counted_is_led_and_not_told(engine: Any) -> None:
    ours, theirs = multiprocessing.Pipe()
    engine.takes_part = lambda: False  # the other end of the pipe is another process's
    theirs.send("a")
    engine.takes_part = lambda: True
    engine.draws.counted = "the generator"
    assert _ask(ours) == "a"
    assert (engine.led, engine.read_at) == (["the generator"], [])


@pytest.mark.parametrize("before", [True, False])
def test_it_is_told_once_training_speaks_to_another_process(engine: Any, before: bool) -> None:
    ours, theirs = multiprocessing.Pipe()
    engine.takes_part = lambda: False
    theirs.send("a")
    engine.takes_part = lambda: True
    engine.draws.counted = "the generator"
    if before:
        ours.send("how far")
    assert _ask(ours) == "a"
    if not before:
        assert engine.read_at == []
        ours.send("how far")
    assert len(engine.read_at) == 1


def test_a_queue_whose_items_are_counted_speaks_to_others_too(engine: Any) -> None:
    queue: Any = multiprocessing.JoinableQueue()
    queue.put(1)
    ours, theirs = multiprocessing.Pipe()
    engine.takes_part = lambda: False
    theirs.send("a")
    engine.takes_part = lambda: True
    engine.draws.counted = "the generator"
    assert _ask(ours) == "a"
    assert len(engine.read_at) == 1
    queue.close()
    queue.cancel_join_thread()


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
