"""A look is done again as long as another thread may have written what differs, and no longer."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Iterator

import pytest

from torchrelay.shim.capture.records.difference import Difference
from torchrelay.shim.capture.records.put_entries import CannotPutError
from torchrelay.shim.step.written_meanwhile import others_run, settled

DRAWN = Difference("bar.drawn_s", "1.0", "7.0", 3, "drawn_s")


class Written:
    """Something that another thread writes so many more times."""

    def __init__(self, times: int) -> None:
        self.times = times
        self.looks = 0
        self.puts = 0

    def look(self) -> list[Difference]:
        self.looks += 1
        self.times -= 1
        return [DRAWN] if self.times >= 0 else []

    def put_back(self) -> None:
        self.puts += 1


def test_what_nobody_writes_is_looked_at_once() -> None:
    written = Written(0)
    assert settled(written.look, written.put_back, lambda: True) == []
    assert (written.looks, written.puts) == (1, 0)


def test_it_is_put_back_until_a_look_finds_nothing() -> None:
    written = Written(3)
    assert settled(written.look, written.put_back, lambda: True) == []
    assert (written.looks, written.puts) == (4, 3)


def test_what_another_thread_writes_faster_than_one_can_look_is_left_to_it() -> None:
    looks = itertools.count()
    written = Written(1000)

    def look() -> list[Difference]:
        written.look()
        return [DRAWN._replace(now=str(next(looks)))]

    assert settled(look, written.put_back, lambda: True) == []
    assert settled(look, written.put_back, lambda: False) != []
    assert settled(lambda: [*look(), DRAWN._replace(path="model.scale")], written.put_back, lambda: True) != []
    assert written.puts > 4


def test_a_value_that_differs_in_the_same_way_again_and_again_is_one() -> None:
    written = Written(1000)
    assert settled(written.look, written.put_back, lambda: True) == [DRAWN]
    assert written.looks < 100


def test_without_another_thread_a_difference_is_one() -> None:
    written = Written(1)
    assert settled(written.look, written.put_back, lambda: False) == [DRAWN]
    assert (written.looks, written.puts) == (1, 0)


def test_what_cannot_be_put_differs() -> None:
    def cannot() -> None:
        raise CannotPutError("model.training")

    assert settled(Written(1).look, cannot, lambda: True) == [DRAWN]


@pytest.fixture
def waiting() -> Iterator[threading.Event]:
    event = threading.Event()
    yield event
    event.set()


@pytest.mark.parametrize(("name", "counts"), [("drawer", True), ("torchrelay-keep", False)])
def test_torchrelays_own_threads_do_not_count(waiting: threading.Event, name: str, counts: bool) -> None:
    before = others_run()
    thread = threading.Thread(target=waiting.wait, name=name, daemon=True)
    thread.start()
    assert others_run() == (counts or before)
    waiting.set()
    thread.join()
