"""While training and a thread that fetches ahead run by turns, what each of them changes is told apart."""

from __future__ import annotations

import queue
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from torchrelay.shim.capture.state.filled_queues import FilledQueues
from torchrelay.shim.capture.state.thread_objects import PartName
from torchrelay.shim.capture.values.kept import KEPT
from torchrelay.shim.data.fetching_turns import FetchingTurns

WAIT_S = 60.0


class Ahead:
    def __init__(self, *, slow: threading.Event | None = None) -> None:
        self.queues = FilledQueues()
        self.turns = FetchingTurns(self.queues, lambda _: True)
        self.items: queue.Queue[int] = queue.Queue(2)
        self.queues.made(self.items, in_set_up=True)
        self.queues.use(self.items).is_taken = True
        self.fetched = self.taken = self.both = 0
        self.order = [0]
        self.slow = slow
        self.ended = False
        self.thread = threading.Thread(target=self.fetch, daemon=True)
        self.thread.start()

    def fetch(self) -> None:
        while not self.ended:
            if self.slow is not None:
                self.slow.wait(WAIT_S)
            self.fetched += 1
            self.both += 1
            self.order[0] += 1
            self.queues.given(self.items, by_training=False)
            self.turns.before_put(self.items)
            self.items.put(self.fetched)
            self.turns.after_put()

    def step(self) -> int:
        if not self.items.queue:
            self.turns.waits_for_item()
        self.taken += 1
        self.both += 1
        return self.items.get(timeout=WAIT_S)

    def end(self) -> None:
        self.ended = True
        self.turns.end()
        if self.slow is not None:
            self.slow.set()
        while self.thread.is_alive():
            self.items.queue.clear()
            with self.items.not_full:
                self.items.not_full.notify_all()
            self.thread.join(0.01)


@pytest.fixture
def ahead() -> Iterator[Ahead]:
    made = Ahead()
    yield made
    made.end()


def tell(ahead: Ahead) -> list[int]:
    """Return the items of the steps that it takes."""
    items = []
    while not ahead.turns.is_over:
        ahead.turns.at_boundary()
        items.append(ahead.step())
    return items


def test_what_a_thread_and_what_training_changes_is_told_apart(ahead: Ahead) -> None:
    items = tell(ahead)
    assert items == [*range(1, len(items) + 1)]
    assert ahead.turns.has_told
    threads = ahead.queues.threads
    assert PartName("Ahead", "taken") in threads.by_training - threads.by_threads
    assert PartName("Ahead", "fetched") in threads.by_threads - threads.by_training
    assert PartName("Ahead", "both") in threads.by_threads & threads.by_training
    assert threads.is_theirs(ahead.order)
    content = threads.without_theirs(ahead, vars(ahead))
    assert content["fetched"] is KEPT
    assert (content["taken"], content["both"]) == (ahead.taken, ahead.both)


def test_afterwards_the_thread_runs_as_ever(ahead: Ahead) -> None:
    before = len(tell(ahead))
    assert [ahead.step() for _ in range(20)] == [*range(before + 1, before + 21)]


def test_another_process_knows_what_this_one_has_told(ahead: Ahead) -> None:
    tell(ahead)
    queues = FilledQueues()
    turns = FetchingTurns(queues, lambda _: True)
    turns.learn(ahead.turns.record())
    assert turns.has_told
    assert queues.threads.known == ahead.queues.threads.known


def test_nothing_is_recorded_without_a_thread() -> None:
    turns = FetchingTurns(FilledQueues(), lambda _: True)
    assert turns.at_boundary() is False
    assert turns.record() == ()


def test_training_that_waits_for_an_item_gets_it_while_threads_stand_still(ahead: Ahead) -> None:
    ahead.turns.at_boundary()
    assert [ahead.step() for _ in range(8)] == [*range(1, 9)], "more than what is in the queue"


def test_it_is_given_up_where_a_thread_does_not_stop() -> None:
    slow = threading.Event()
    slow.set()
    made = Ahead(slow=slow)
    try:
        made.step()
        slow.clear()
        while not made.turns.is_over:
            made.turns.at_boundary()
        assert not made.turns.has_told
    finally:
        made.end()


def test_what_differs_and_is_nobodys_known_doing_is_in_doubt(ahead: Ahead) -> None:
    tell(ahead)
    threads = ahead.queues.threads
    before: dict[int, Any] = threads.content_of(ahead)
    ahead.taken = 0
    assert threads.in_doubt(before, threads.content_of(ahead)) == []
    ahead.slow = threading.Event()
    ahead.slow.set()
    assert threads.in_doubt(before, threads.content_of(ahead)) == ["Ahead.slow"]


def test_what_the_threads_code_does_not_name_is_trainings(ahead: Ahead) -> None:
    tell(ahead)
    threads = ahead.queues.threads
    before: dict[int, Any] = threads.content_of(ahead)
    ahead.best = 3  # type: ignore[attr-defined]  # born in training
    assert threads.in_doubt(before, threads.content_of(ahead)) == []
    assert PartName("Ahead", "best") in threads.by_training


def test_what_changes_later_and_may_be_either_ones_doing_is_told(ahead: Ahead) -> None:
    tell(ahead)
    ahead.turns.at_boundary()
    ahead.best = 3  # type: ignore[attr-defined]  # born in training
    ahead.turns.at_boundary()
    assert ahead.turns.unknown == []
    ahead.slow = threading.Event()
    ahead.slow.set()
    ahead.turns.at_boundary()
    assert ahead.turns.unknown == [PartName("Ahead", "slow")]


def test_what_changes_again_and_again_is_told_once(ahead: Ahead) -> None:
    tell(ahead)
    for _ in range(4):
        ahead.turns.at_boundary()
        ahead.slow = threading.Event()
        ahead.slow.set()
    assert len(ahead.turns.unknown) == 1


def test_what_a_thread_worked_with_that_ends_within_a_step_stays_its_own(ahead: Ahead) -> None:
    tell(ahead)
    threads = ahead.queues.threads
    ahead.end()
    threads.look_also(ahead.queues.fillers())
    assert threads.without_theirs(ahead, vars(ahead))["fetched"] is KEPT
    threads.look(ahead.queues.fillers())
    assert not threads.has(ahead), "at the next boundary nobody is at work there"
