"""A process is led to where another one has taken from a queue that a thread fills, and must find the same items."""

from __future__ import annotations

import pickle
import queue
import threading
from typing import Any

import pytest
import torch
from support.host_state import carry, differences, journal

from torchrelay.protocol.errors import StateMismatchError
from torchrelay.shim.capture.models.modules import ModuleTrees
from torchrelay.shim.capture.records import encode
from torchrelay.shim.capture.state import filled_queues
from torchrelay.shim.capture.state.filled_queues import FilledQueues
from torchrelay.shim.capture.values.item_mark import TakenItems

START = TakenItems(0, b"")


def filled_by_thread(queues: FilledQueues, *items: Any) -> queue.Queue[Any]:
    """Return a queue that a thread has filled, and which is over."""
    made: queue.Queue[Any] = queue.Queue()
    queues.made(made, in_set_up=True)

    def fill() -> None:
        for item in items:
            queues.given(made, by_training=False)
            made.put(item)

    thread = threading.Thread(target=fill)
    thread.start()
    thread.join()
    return made


def test_it_takes_as_many_items() -> None:
    queues = FilledQueues()
    here = filled_by_thread(queues, 1, 2, 3)
    queues.lead(here, START.after(1).after(2), None)
    assert here.get_nowait() == 3


@pytest.mark.parametrize("other", [5, torch.zeros(3), 0.5])
def test_other_items_are_refused(other: Any) -> None:
    queues = FilledQueues()
    here = filled_by_thread(queues, 1, other)
    with pytest.raises(StateMismatchError, match="has put other items into its queue here"):
        queues.lead(here, START.after(1).after(2), None)


def test_numbers_alone_are_told_apart() -> None:
    assert START.after(0.25) != START.after(0.5)


def test_a_thread_that_ends_early_is_refused() -> None:
    queues = FilledQueues()
    here = filled_by_thread(queues, 1)
    with pytest.raises(StateMismatchError, match="has ended here after 1 item"):
        queues.lead(here, START.after(1).after(2), None)


def test_an_iterator_that_begins_its_thread_late_is_asked_first() -> None:
    queues = FilledQueues()
    late: queue.Queue[int] = queue.Queue()

    class Late:
        def __next__(self) -> int:
            threading.Thread(target=fill).start()
            item = late.get()
            queues.use(late).put(queues.use(late).place.after(item))
            return item

    def fill() -> None:
        for item in (1, 2, 3):
            queues.given(late, by_training=False)
            late.put(item)

    queues.lead(late, START.after(1).after(2), Late())
    assert late.get() == 3


def test_a_stack_is_not_fetched_ahead() -> None:
    queues = FilledQueues()
    made: queue.Queue[int] = queue.LifoQueue()
    thread = threading.Thread(target=lambda: queues.given(made, by_training=False))
    thread.start()
    thread.join()
    assert [*queues.ahead()] == []


@pytest.fixture
def trees() -> ModuleTrees:
    return ModuleTrees()


def test_what_training_alone_keeps_in_a_queue_is_its_state(trees: ModuleTrees) -> None:
    recent: queue.Queue[Any] = queue.Queue(4)
    trees.queues.given(recent, by_training=True)
    trees.queues.at_boundary()
    recent.put([1, 2])
    target: dict[str, Any] = {"recent": queue.Queue(4), "again": None}
    carry({"recent": recent, "again": recent.queue}, target, trees)
    assert target["recent"].get_nowait() == [1, 2]


def test_one_that_training_has_made_is_made_again(trees: ModuleTrees) -> None:
    recent: queue.Queue[int] = queue.Queue(4)
    trees.queues.given(recent, by_training=True)
    trees.queues.at_boundary()
    recent.put(7)
    target: dict[str, Any] = {"recent": None}
    carry({"recent": recent}, target, trees)
    made = target["recent"]
    assert (made.maxsize, made.get_nowait()) == (4, 7)
    made.put(1)
    assert made.get(timeout=60) == 1


def test_what_it_holds_is_compared_by_what_it_leads_to(trees: ModuleTrees) -> None:
    def written(*before: Any) -> Any:
        recent: queue.Queue[Any] = queue.Queue(4)
        trees.queues.given(recent, by_training=True)
        trees.queues.at_boundary()
        recent.put([1])
        names = {
            f"v{place}": [each] for place, each in enumerate(before)
        }  # the queue's items have other numbers behind these
        return encode.decode(pickle.loads(journal({**names, "recent": recent}, trees)))

    assert differences(written(), written(1, 2)) == []


class Doubled(queue.Queue[int]):
    def get(self, block: bool = True, timeout: float | None = None) -> int:
        return 2 * super().get(block, timeout)


def test_what_a_subclass_makes_of_items_does_not_count() -> None:
    queues = FilledQueues()
    made = Doubled()
    queues.made(made, in_set_up=True)
    made.put(1)
    queues.lead(made, START.after(1), None)
    assert made.empty()


def test_a_queue_that_no_thread_fills_here_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(filled_queues, "_LOOK_S", 0.001)
    queues = FilledQueues()
    empty: queue.Queue[int] = queue.Queue()
    with pytest.raises(StateMismatchError, match="no thread has put anything here"):
        queues.lead(empty, START.after(1), None)
