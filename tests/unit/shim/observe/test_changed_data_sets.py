from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import numpy
import pytest
from support.host_state import take
from torch.utils.data import Dataset

from torchrelay.protocol.messages import Gap
from torchrelay.protocol.names import BARS
from torchrelay.shim.capture.iteration.data_changes import DataChanges
from torchrelay.shim.capture.state.filled_queues import FilledQueues
from torchrelay.shim.observe import changed_data_sets
from torchrelay.shim.observe.changed_bulk import ChangedBulk
from torchrelay.shim.observe.changed_data_sets import OwnThreads


class Cache(Dataset[Any]):
    def __init__(self) -> None:
        self.items: list[Any] = [1, 2]
        self.ended = threading.Event()
        self.thread: threading.Thread | None = None

    def start(self) -> None:
        self.thread = threading.Thread(target=self.ended.wait)
        self.thread.start()

    def work(self) -> None:
        self.ended.wait()


@pytest.fixture
def cache() -> Iterator[Cache]:
    made, others = Cache(), set(threading.enumerate())
    yield made
    made.ended.set()
    for thread in set(threading.enumerate()) - others:
        thread.join(60)


def begun() -> DataChanges:
    changes = DataChanges()
    changes.settle()
    return changes


def gaps(data: Cache, changes: DataChanges, threads: OwnThreads | None = None) -> list[Gap]:
    threads = OwnThreads(FilledQueues()) if threads is None else threads
    changes.look([data])
    threads.look(changes.changed.objects())
    return changed_data_sets.gaps(take({"data": data}), changes, ChangedBulk(), threads)


def test_what_is_carried_is_no_gap(cache: Cache) -> None:
    changes = begun()
    assert gaps(cache, changes) == []
    cache.items[0] = 7
    assert gaps(cache, changes) == []


def test_a_thread_that_a_changing_data_set_holds_bars_replacement(cache: Cache) -> None:
    changes = begun()
    cache.start()
    assert gaps(cache, changes) == []
    cache.items[0] = 7
    (gap,) = gaps(cache, changes)
    assert gap.effect == BARS
    assert gap.text.startswith("script.data: a thread of its own works on it")


def test_so_does_one_that_is_over(cache: Cache) -> None:
    changes, threads = begun(), OwnThreads(FilledQueues())
    cache.start()
    assert cache.thread is not None
    gaps(cache, changes, threads)
    cache.items[0] = 7
    assert len(gaps(cache, changes, threads)) == 1
    cache.ended.set()
    cache.thread.join(60)
    cache.thread = None
    assert len(gaps(cache, changes, threads)) == 1, "the next epoch begins another one"


def test_so_does_one_that_runs_its_method(cache: Cache) -> None:
    changes = begun()
    threading.Thread(target=cache.work).start()
    assert gaps(cache, changes) == []
    cache.items[0] = 7
    assert len(gaps(cache, changes)) == 1


@pytest.mark.parametrize("content", [numpy.zeros(1 << 16), [[place] for place in range(5000)]])
def test_so_does_a_change_that_is_too_large(cache: Cache, content: Any) -> None:
    changes = begun()
    assert gaps(cache, changes) == []
    cache.items = content
    (gap,) = gaps(cache, changes)
    assert gap.effect == BARS
    assert gap.text.startswith("script.data.items")
    assert "cannot be carried" in gap.text


@pytest.mark.parametrize("samples", [[{"row": row} for row in range(5000)], {row: [row] for row in range(5000)}])
def test_so_does_another_order_in_what_is_taken_for_data(samples: Any) -> None:
    bulk = ChangedBulk()

    def texts(boundary: int, loop: object) -> list[str]:
        state = take({"samples": samples})
        bulk.look(state, boundary, loop)
        return [gap.text for gap in changed_data_sets.gaps(state, DataChanges(), bulk, OwnThreads(FilledQueues()))]

    first, second = object(), object()
    assert texts(0, first) == texts(8, first) == []
    if isinstance(samples, dict):
        samples[7], samples[8] = samples[8], samples[7]
    else:
        samples.reverse()
    assert texts(9, first) == []  # not looked at
    (text,) = texts(10, second)
    assert text.startswith("script.samples: training changes it")


def test_what_set_up_makes_of_a_data_set_before_training_is_made_by_a_new_process_too(cache: Cache) -> None:
    changes = DataChanges()
    assert gaps(cache, changes) == []
    cache.items = numpy.zeros(1 << 16)  # type: ignore[assignment]  # as a constructor puts arrays in place of lists
    assert gaps(cache, changes) == []
    changes.settle()
    assert gaps(cache, changes) == []
    cache.items = numpy.ones(1 << 16)  # type: ignore[assignment]  # the same
    assert len(gaps(cache, changes)) == 1
