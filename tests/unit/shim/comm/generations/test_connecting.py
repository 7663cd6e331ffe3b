"""A communicator that cannot be connected any more is let go of when its generation is broken."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from torchrelay.shim.comm.generations.connecting import NAME, connected
from torchrelay.shim.comm.generations.generation import Generation

LIMIT_S = 30.0


def test_what_is_made_is_returned_and_what_fails_is_raised() -> None:
    generation = Generation(3)
    made = object()
    assert connected(generation, lambda: made) is made

    def fail() -> Any:
        raise OSError("gloo: no address")

    with pytest.raises(OSError, match="no address"):
        connected(generation, fail)


def test_threads_that_connect_at_once_do_not_take_each_others_signal() -> None:
    generation, begin = Generation(3), threading.Barrier(8)
    made: list[Any] = []

    def connect(number: int) -> None:
        begin.wait(LIMIT_S)
        made.append(connected(generation, lambda: number))

    threads = [threading.Thread(target=connect, args=(number,), daemon=True) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(LIMIT_S)
    assert sorted(made) == [*range(8)]
    assert not generation.waiting


@pytest.mark.parametrize("when", ["before", "meanwhile"])
def test_who_waits_for_a_peer_that_never_comes_is_let_go_when_the_generation_breaks(when: str) -> None:
    generation, waits, peer = Generation(3), threading.Event(), threading.Event()

    def connect() -> object:
        waits.set()
        peer.wait()
        return object()

    def break_it() -> None:
        if when == "meanwhile":
            assert waits.wait(LIMIT_S)
        generation.breaks()

    if when == "before":
        break_it()
    breaker = threading.Thread(target=break_it)
    breaker.start()
    try:
        with pytest.raises(RuntimeError, match="generation 3 was broken"):
            connected(generation, connect)
    finally:
        peer.set()
        breaker.join(LIMIT_S)
        for thread in threading.enumerate():
            if thread.name == NAME:
                thread.join(LIMIT_S)
