"""Training that waits for what a thread signals is told of; what training uses alone, or only tells a thread, is not."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from types import FrameType, SimpleNamespace
from typing import Any

import pytest

from torchrelay.shim.capture.values import callables
from torchrelay.shim.observe.thread_signals import ThreadSignals
from torchrelay.shim.script.guard import Guard


@pytest.fixture
def told(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    monkeypatch.setattr(callables, "is_users", lambda file: file == __file__)
    names = ("__init__", "set", "wait", "is_set", "notify", "notify_all", "wait_for", "acquire", "release", "__enter__")
    for cls in (threading.Event, threading.Condition, threading.Semaphore):
        for name in names:
            if name in vars(cls):
                monkeypatch.setattr(cls, name, vars(cls)[name])  # put back in the end
    monkeypatch.setattr(queue, "SimpleQueue", queue.SimpleQueue)
    main = threading.get_ident()

    def is_main() -> bool:
        return threading.get_ident() == main

    made: Any = SimpleNamespace(
        commit=SimpleNamespace(boundary=3),
        guard=Guard(lambda: None),
        takes_part=is_main,
        on_training_thread=is_main,
        tracker=SimpleNamespace(live=True),
    )
    found: list[str] = []

    def others_are_read(frame: FrameType, what: str) -> None:
        found.append(what)

    made.reporter = SimpleNamespace(reads_from_others=None, others_are_read=others_are_read)
    ThreadSignals(made).install()
    found_of[id(found)] = made
    yield found
    del found_of[id(found)]


found_of: dict[int, Any] = {}


def in_a_thread(work: Callable[[], object]) -> threading.Thread:
    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    return thread


def test_an_event_that_another_thread_sets_is_told(told: list[str]) -> None:
    ready = threading.Event()
    in_a_thread(ready.set).join()
    assert ready.wait(5)
    assert told == ["what another thread signals by an object of threading (Event)"]


def test_what_training_only_tells_is_no_obstacle(told: list[str]) -> None:
    flush, alone, room = threading.Event(), threading.Event(), threading.Semaphore(2)
    thread = in_a_thread(lambda: flush.wait(5))
    flush.set()
    thread.join()
    alone.set()
    assert alone.is_set()
    with room:
        pass
    assert told == []


@pytest.mark.parametrize("answers", [True, False])
def test_a_condition_that_a_thread_waits_for_is_told_where_it_answers_by_that(told: list[str], answers: bool) -> None:
    taken = threading.Condition()

    def work() -> None:
        with taken:
            taken.wait(5)
            if answers:
                taken.notify()

    thread = in_a_thread(work)
    while not taken._waiters:  # type: ignore[attr-defined]
        pass
    with taken:
        taken.notify()
    thread.join()
    assert told == [], "the thread has not answered by then"
    with taken:
        taken.notify()
    assert told == ["what another thread signals by an object of threading (Condition)"] * answers


def test_a_semaphore_that_another_thread_releases_is_told(told: list[str]) -> None:
    room = threading.Semaphore(0)
    in_a_thread(room.release).join()
    with room:
        pass
    assert told == ["what another thread signals by an object of threading (Semaphore)"]


def test_a_plain_queue_is_told_where_a_thread_or_an_earlier_step_has_filled_it(told: list[str]) -> None:
    filled: Any = queue.SimpleQueue()
    filled.put(1)
    assert filled.get() == 1
    assert told == []
    filled.put(2)
    found_of[id(told)].commit = SimpleNamespace(boundary=4)
    assert filled.get_nowait() == 2
    assert told == ["what a step before has put into a SimpleQueue"]
    in_a_thread(lambda: filled.put(3)).join()
    assert filled.get(timeout=5) == 3
    assert told[1:] == ["what another thread puts into a queue"]
    with pytest.raises(queue.Empty):
        filled.get(block=False)


def test_a_plain_queue_that_training_drains_is_no_obstacle_and_keeps_nothing(told: list[str]) -> None:
    filled: Any = queue.SimpleQueue()
    filled.put(1)
    assert filled.get() == 1
    with pytest.raises(queue.Empty):
        filled.get_nowait()
    with ThreadPoolExecutor(1) as pool:
        assert [pool.submit(int).result() for _ in range(20)] == [0] * 20
        assert len(pool._work_queue._steps) == 0
    assert told == []


def test_an_event_that_a_thread_sets_while_training_waits_is_told(told: list[str]) -> None:
    asked, done = threading.Event(), threading.Event()
    in_a_thread(lambda: asked.wait(5) and done.set())
    asked.set()
    assert done.wait(5)
    assert told == ["what another thread signals by an object of threading (Event)"]


class Package:
    """Code of a package."""

    def __init__(self) -> None:
        self.namespace: dict[str, Any] = {"__name__": "package", "threading": threading}
        exec(compile(PACKAGE, "package.py", "exec"), self.namespace)

    def __getattr__(self, name: str) -> Any:
        return self.namespace[name]


PACKAGE = """
def asks():
    done = threading.Event()
    threading.Thread(target=lambda: done.set()).start()
    done.wait(5)

def waits_for(done):
    threading.Thread(target=lambda: done.set()).start()
    done.wait(5)

wake = threading.Condition()
def work():
    with wake:
        wake.wait(5)

def logs():
    with wake:
        wake.notify()
"""


def test_what_a_package_asks_its_own_thread_for_within_a_step_is_no_obstacle(told: list[str]) -> None:
    package = Package()
    package.asks()
    thread = in_a_thread(package.work)
    while not package.wake._waiters:
        pass
    package.logs()
    thread.join()
    assert told == []
    done = threading.Event()
    found_of[id(told)].commit = SimpleNamespace(boundary=4)
    package.waits_for(done)
    assert told == ["what another thread signals by an object of threading (Event)"]


def test_queues_and_threads_of_python_are_not_meant(told: list[str]) -> None:
    own: queue.Queue[int] = queue.Queue(1)
    thread = in_a_thread(lambda: [own.put(number) for number in range(3)])
    assert [own.get() for _ in range(3)] == [0, 1, 2]
    thread.join()
    assert told == []
