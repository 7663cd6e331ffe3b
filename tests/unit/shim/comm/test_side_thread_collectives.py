"""Collectives on threads of the script's own."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from support.loop_script import LOST, LoopScript

from torchrelay.protocol.errors import UnsupportedError
from torchrelay.shim.comm.generations.generation import Generation


@pytest.fixture
def training(script: LoopScript) -> LoopScript:
    script.tracker.live = True
    return script


def on_a_thread(script: LoopScript, call: Callable[[], Any]) -> Any:
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(script.engine.beside, call).result()


def test_another_threads_communication_is_reported_and_left_alone(training: LoopScript) -> None:
    assert on_a_thread(training, lambda: 7) == 7
    training.run("for batch in range(2):\n    step()")
    told = [gap.kind for report in training.sent for gap in getattr(report, "gaps", ())]
    assert told[-1:] == ["side-thread"]


def broken() -> None:
    raise RuntimeError(LOST)


def fails() -> None:
    raise RuntimeError("no such file")


def test_another_threads_communication_that_a_loss_breaks_says_so(training: LoopScript) -> None:
    with pytest.raises(UnsupportedError, match="a rank was lost or moved while this thread communicated") as caught:
        on_a_thread(training, broken)
    assert str(caught.value.__cause__) == LOST
    with pytest.raises(RuntimeError, match="no such file"):
        on_a_thread(training, fails)


def test_a_thread_from_before_a_migration_is_not_let_into_the_new_communicators(training: LoopScript) -> None:
    entered: list[str] = []
    with ThreadPoolExecutor(1) as pool:
        pool.submit(lambda: None).result()
        training.engine.comms.now = Generation(1, older=weakref.WeakSet(threading.enumerate()))
        refused = pool.submit(training.engine.beside, lambda: entered.append("old"))
        with pytest.raises(UnsupportedError, match="the new one is not in it"):
            refused.result()
    on_a_thread(training, lambda: entered.append("new"))
    assert entered == ["new"]


def test_another_thread_communicates_until_its_call_or_its_wait_is_over(training: LoopScript) -> None:
    engine = training.engine
    begun, over = threading.Event(), threading.Event()

    def communicate() -> None:
        begun.set()
        assert over.wait(10)

    for way in (engine.beside, engine.waits_beside):
        assert not engine.communicates_beside()
        with ThreadPoolExecutor(1) as pool:
            call = pool.submit(way, communicate)
            assert begun.wait(10)
            assert engine.communicates_beside()
            over.set()
            call.result()
        begun.clear()
        over.clear()
    with pytest.raises(RuntimeError, match="no such file"):
        on_a_thread(training, fails)
    assert not engine.communicates_beside()
