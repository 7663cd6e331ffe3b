"""A look is done again as long as another thread may have written what differs, and no longer."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest

from torchrelay.shim.capture.records.difference import Difference
from torchrelay.shim.capture.records.put_entries import CannotPutError
from torchrelay.shim.step.written_meanwhile import others_run, settled

DRAWN = Difference("bar.drawn_s", "1.0", "7.0", 3, "drawn_s")


class Written:
    """Something that another thread writes so many more times. `is_put`: whether it can be put back."""

    def __init__(self, times: int, *, is_put: bool = True) -> None:
        self.times = times
        self.is_put = is_put
        self.looks = 0
        self.puts = 0

    def look(self) -> list[Difference]:
        self.looks += 1
        self.times -= 1
        return [DRAWN] if self.times >= 0 else []

    def put_back(self) -> set[str]:
        self.puts += 1
        return {DRAWN.path} if self.is_put else set()


def test_what_nobody_writes_is_looked_at_once() -> None:
    written = Written(0)
    assert settled(written.look, written.put_back, lambda: True) == []
    assert (written.looks, written.puts) == (1, 0)


def test_it_is_put_back_until_a_look_finds_nothing() -> None:
    written = Written(3)
    assert settled(written.look, written.put_back, lambda: True) == []
    assert (written.looks, written.puts) == (4, 3)


def test_what_another_thread_writes_faster_than_one_can_look_is_left_to_it() -> None:
    written = Written(1000)
    assert settled(written.look, written.put_back, lambda: True) == []
    assert settled(written.look, written.put_back, lambda: False) == [DRAWN]
    other = DRAWN._replace(path="model.scale")
    assert settled(lambda: [*written.look(), other], written.put_back, lambda: True) == [DRAWN, other]
    assert written.puts > 4


def test_a_value_that_is_not_in_its_place_after_it_was_put_differs() -> None:
    written = Written(1000, is_put=False)
    assert settled(written.look, written.put_back, lambda: True) == [DRAWN]
    assert written.looks < 100


def test_without_another_thread_a_difference_is_one() -> None:
    written = Written(1)
    assert settled(written.look, written.put_back, lambda: False) == [DRAWN]
    assert (written.looks, written.puts) == (1, 0)


def test_what_cannot_be_put_differs() -> None:
    def cannot() -> set[str]:
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
