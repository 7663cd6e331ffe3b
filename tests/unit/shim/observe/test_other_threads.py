"""A step that takes what another thread has made ahead is noticed; a queue of the training thread alone is not meant."""

from __future__ import annotations

import os
import queue
import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from multiprocessing import pool
from multiprocessing.pool import ThreadPool
from types import FrameType, SimpleNamespace
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset

from torchrelay.shim.capture.models.modules import ModuleTrees
from torchrelay.shim.capture.values.item_mark import TakenItems
from torchrelay.shim.data.fetching_turns import FetchingTurns
from torchrelay.shim.data.iterator_replay import IteratorReplay
from torchrelay.shim.observe.other_threads import OtherThreads
from torchrelay.shim.script.guard import Guard


@pytest.fixture
def engine(monkeypatch: pytest.MonkeyPatch) -> Any:
    cls: Any = queue.Queue
    for name in ("__init__", "get", "put"):
        monkeypatch.setattr(cls, name, getattr(cls, name))  # put back in the end
    patched: list[tuple[Any, str]] = [(ThreadPoolExecutor, "submit"), (Future, "result"), (pool.ApplyResult, "get")]
    patched += [(cls, "__init__") for cls in (pool.ApplyResult, pool.IMapIterator)]
    patched += [(pool.IMapIterator, name) for name in ("next", "__next__")]
    for kind, name in patched:
        monkeypatch.setattr(kind, name, getattr(kind, name))
    main = threading.get_ident()

    def is_main() -> bool:
        return threading.get_ident() == main

    made: Any = SimpleNamespace(
        commit=SimpleNamespace(boundary=3),
        guard=Guard(lambda: None),
        takes_part=is_main,
        on_training_thread=is_main,
        told=[],
        draws=IteratorReplay(),
        tracker=SimpleNamespace(stack=[], live=True),
        trees=ModuleTrees(),
    )
    made.fetching = FetchingTurns(made.trees.queues, lambda _: True)

    def others_are_read(frame: FrameType, what: str) -> None:
        made.reporter.reads_from_others = what
        made.told.append((frame.f_code.co_name, what))

    made.reporter = SimpleNamespace(reads_from_others=None, others_are_read=others_are_read)
    OtherThreads(made).install()
    return made


def _fill(filled: queue.Queue[int], *items: int) -> None:
    thread = threading.Thread(target=lambda: [filled.put(item) for item in items])
    thread.start()
    thread.join()


def _ask(filled: queue.Queue[int]) -> int:
    return filled.get()


def test_what_a_thread_fetches_ahead_is_counted(engine: Any) -> None:
    filled: queue.Queue[int] = queue.Queue()
    _fill(filled, 1, 2, 3)
    assert (_ask(filled), _ask(filled)) == (1, 2)
    assert engine.told == []
    assert engine.trees.queues.use(filled).place == TakenItems(0, b"").after(1).after(2)


def test_it_comes_again_to_a_rank_that_goes_back(engine: Any) -> None:
    filled: queue.Queue[int] = queue.Queue()
    _fill(filled, 1, 2, 3, 4)
    _ask(filled)
    engine.draws.at_boundary()
    before = engine.trees.queues.use(filled).place
    assert (_ask(filled), _ask(filled)) == (2, 3)
    after = engine.trees.queues.use(filled).place
    engine.draws.rewind()
    engine.trees.queues.use(filled).put(before)
    assert (_ask(filled), _ask(filled)) == (2, 3)
    assert engine.trees.queues.use(filled).place == after
    assert _ask(filled) == 4


def test_a_process_that_the_script_forks_records_nothing(engine: Any) -> None:
    filled: queue.Queue[int] = queue.Queue()
    _fill(filled, 1, 2)
    engine.draws.at_boundary()
    child = os.fork()
    if child == 0:
        _ask(filled)
        os._exit(len(engine.draws.consumed))
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    _ask(filled)
    assert len(engine.draws.consumed) == 1


def test_a_walk_looks_anew_once_a_queue_is_state(engine: Any) -> None:
    queues = engine.trees.queues
    filled: queue.Queue[int] = queue.Queue()
    _fill(filled, 1, 2)
    assert not queues.at_boundary(), "training may never take from it"
    _ask(filled)
    assert queues.at_boundary()
    _ask(filled)
    assert not queues.at_boundary()
    own: queue.Queue[int] = queue.Queue()
    own.put(1)
    assert queues.at_boundary()


def test_nobody_is_held_who_fills_a_queue_that_training_does_not_take_from(engine: Any) -> None:
    filled: queue.Queue[int] = queue.Queue()
    goes_on = threading.Event()
    thread = threading.Thread(target=lambda: (filled.put(1), goes_on.wait(60)))
    thread.start()
    assert engine.trees.queues.fillers() == []
    goes_on.set()
    thread.join()


def test_a_thread_that_training_tells_what_to_fetch_is_told(engine: Any) -> None:
    orders: queue.Queue[int] = queue.Queue()
    filled: queue.Queue[int] = queue.Queue()
    orders.put(5)
    thread = threading.Thread(target=lambda: filled.put(orders.get()))
    thread.start()
    thread.join()
    assert _ask(filled) == 5
    assert engine.told == [("_ask", "what another thread puts into a queue")]


def test_so_is_a_queue_that_training_fills_too(engine: Any) -> None:
    filled: queue.Queue[int] = queue.Queue()
    _fill(filled, 1)
    filled.put(2)
    assert _ask(filled) == 1
    assert engine.told == [("_ask", "what another thread puts into a queue")]


@pytest.mark.parametrize("kind", [queue.LifoQueue, queue.PriorityQueue])
def test_an_item_that_comes_by_how_far_a_thread_is_is_told_once_with_who_asks(
    engine: Any, kind: type[queue.Queue[int]]
) -> None:
    filled = kind()
    _fill(filled, 1, 1)
    assert (_ask(filled), _ask(filled)) == (1, 1)
    assert engine.told == [("_ask", "what another thread puts into a queue")]


def test_a_queue_that_the_training_thread_fills_itself_is_no_obstacle(engine: Any) -> None:
    own: queue.Queue[int] = queue.Queue()
    own.put(3)
    assert _ask(own) == 3
    assert engine.told == []


def test_nothing_is_told_before_there_is_a_boundary(engine: Any) -> None:
    engine.commit = None
    filled: queue.Queue[int] = queue.Queue()
    _fill(filled, 1)
    assert _ask(filled) == 1
    assert engine.told == []


def test_what_other_threads_take_is_their_own_affair(engine: Any) -> None:
    filled: queue.Queue[int] = queue.Queue()
    _fill(filled, 1)
    thread = threading.Thread(target=_ask, args=(filled,))
    thread.start()
    thread.join()
    assert engine.told == []


def test_a_data_loaders_queues_are_followed_elsewhere(engine: Any) -> None:
    loader = DataLoader(TensorDataset(torch.arange(4.0)), num_workers=1)
    assert len([*loader]) == 4
    assert engine.told == []


def _futures(ask: Callable[[], Any]) -> Callable[[], Any]:
    with ThreadPoolExecutor(1) as executor:
        future = executor.submit(ask)
    return lambda: future.result()


def _results(ask: Callable[[], Any]) -> Callable[[], Any]:
    with ThreadPool(1) as threads:
        result = threads.apply_async(ask)
        result.wait()
    return lambda: result.get()


def _items(ask: Callable[[], Any]) -> Callable[[], Any]:
    with ThreadPool(1) as threads:
        items = threads.imap(lambda _: ask(), [0, 1])
        threads.close()
        threads.join()
    return lambda: next(items)


POOLS = pytest.mark.parametrize("asked", [_futures, _results, _items])


@POOLS
def test_what_a_pool_was_asked_for_in_a_step_before_is_told_once(engine: Any, asked: Any) -> None:
    read = asked(lambda: 5)
    engine.commit = SimpleNamespace(boundary=4)
    assert read() == 5
    assert [what for _, what in engine.told] == ["what a pool's thread has made in a step before"]


@POOLS
def test_what_a_pool_makes_within_a_step_is_no_obstacle(engine: Any, asked: Any) -> None:
    assert asked(lambda: 5)() == 5
    assert engine.told == []


@POOLS
def test_a_task_that_returns_nothing_is_no_obstacle(engine: Any, asked: Any) -> None:
    read = asked(lambda: None)
    engine.commit = SimpleNamespace(boundary=4)
    assert read() is None
    assert engine.told == []


def test_what_set_up_has_asked_for_is_told_too(engine: Any) -> None:
    engine.commit = None
    read = _futures(lambda: 5)
    engine.commit = SimpleNamespace(boundary=0)
    assert read() == 5
    assert len(engine.told) == 1


def test_a_result_that_nobody_uses_is_no_obstacle(engine: Any) -> None:
    with ThreadPoolExecutor(1) as threads:
        future = threads.submit(lambda: "the file that was saved")
    engine.commit = SimpleNamespace(boundary=4)
    future.result()
    assert engine.told == []
    assert [future.result()]
    assert len(engine.told) == 1
