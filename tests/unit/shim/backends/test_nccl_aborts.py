"""When an abort counts as stuck: once nothing has moved for some time."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from torchrelay.protocol.logs.log_lines import LogLines, LogPart
from torchrelay.shim.backends import nccl_aborts
from torchrelay.shim.backends.nccl_aborts import Aborts

LOG = LogLines(LogPart.SHIM)


class Hanging:
    """A communicator whose abort ends when it is told to."""

    def __init__(self) -> None:
        self.may_end = threading.Event()

    def abort(self) -> None:
        assert self.may_end.wait(60)


class Stream:
    """The training thread's, which is idle or not."""

    def __init__(self) -> None:
        self.idle, self.asked = False, threading.Event()

    def query(self) -> bool:
        self.asked.set()
        return self.idle


@pytest.fixture
def waiting(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Collectives that wait on the device."""
    found: list[int] = []
    monkeypatch.setattr(nccl_aborts, "waiting_collectives", lambda: found)
    monkeypatch.setattr(nccl_aborts, "LOOK_EVERY_S", 0.01)
    monkeypatch.setattr(nccl_aborts, "STILL_S", 0.2)
    return found


def said_by(told: list[str]) -> Any:
    said = threading.Event()

    def stuck(reason: str) -> None:
        told.append(reason)
        said.set()

    stuck.said = said  # type: ignore[attr-defined]  # for the test to wait for
    return stuck


def test_one_that_is_still_is_said_and_nobody_waits_for_it_any_longer(waiting: list[int]) -> None:
    aborts, hanging, told = Aborts(), Hanging(), list[str]()
    stuck = said_by(told)
    waiting.append(1)
    aborts.begin([hanging], LOG, stuck)
    with pytest.raises(RuntimeError, match="a communicator of NCCL was not aborted"):
        aborts.await_over(60.0)
    assert stuck.said.wait(60)
    assert told == ["a communicator of NCCL was not aborted within 0 s"]
    hanging.may_end.set()


def test_one_that_ends_late_is_waited_for_again(waiting: list[int]) -> None:
    aborts, hanging, stuck = Aborts(), Hanging(), said_by([])
    aborts.begin([hanging], LOG, stuck)
    assert stuck.said.wait(60)
    hanging.may_end.set()
    aborts.begin([], LOG)
    while True:
        try:
            aborts.await_over(60.0)
            break
        except RuntimeError:
            continue


def test_as_long_as_the_device_computes_what_the_script_has_queued_nothing_is_stuck(waiting: list[int]) -> None:
    aborts, hanging, told = Aborts(), Hanging(), list[str]()
    stream = aborts.stream = Stream()
    aborts.begin([hanging], LOG, said_by(told))
    for _ in range(60):  # far longer than one may be still
        stream.asked.clear()
        assert stream.asked.wait(60)
    assert told == []
    hanging.may_end.set()
    aborts.await_over(60.0)


def test_collectives_that_leave_the_device_one_by_one_are_progress(waiting: list[int]) -> None:
    aborts, hanging, told = Aborts(), Hanging(), list[str]()
    left = threading.Semaphore(0)

    class Queue(list[int]):
        """One less each time that it is looked at."""

        def __len__(self) -> int:
            left.release()
            self.pop()
            return super().__len__() + 1

    nccl_aborts.waiting_collectives = lambda: queue  # type: ignore[assignment]  # put back by the fixture
    queue = Queue(range(1000))
    aborts.begin([hanging], LOG, said_by(told))
    for _ in range(60):
        assert left.acquire(timeout=60)
    assert told == []
    hanging.may_end.set()
    aborts.await_over(60.0)
