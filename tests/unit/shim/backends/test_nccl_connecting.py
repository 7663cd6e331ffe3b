"""The wait for a peer that never comes can be given up, whatever torch's own lock says."""

from __future__ import annotations

import contextlib
import threading
from typing import Any

import pytest
import torch

from torchrelay.shim.backends.nccl_connecting import Connecting

DEVICE = torch.device("cpu")


@pytest.fixture(autouse=True)
def _no_device(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "device", lambda device: contextlib.nullcontext())


class Communicator:
    """As torch's: it holds its lock while it connects, and aborts under it. `lazy`: it connects in its first collective."""

    def __init__(self, *, lazy: bool = False, error: RuntimeError | None = None, size: int = 2) -> None:
        self._lock, self._lazy, self._error, self._size = threading.Lock(), lazy, error, size
        self.begun, self.peer_comes, self.queued = threading.Event(), threading.Event(), threading.Event()
        self.aborted, self.on_device = threading.Event(), threading.Event()

    def size(self) -> int:
        return self._size

    def _meet(self) -> None:
        with self._lock:
            self.begun.set()
            assert self.peer_comes.wait(60)
            if self._error is not None:
                raise self._error

    def eager_connect_single_device(self, device: torch.device) -> None:
        assert device == DEVICE
        if not self._lazy:
            self._meet()

    def allreduce(self, tensors: list[torch.Tensor]) -> Any:
        if self._lazy:
            self._meet()
        tensors[0] += 1.0
        return self

    def wait(self) -> None:
        self.queued.set()
        assert self.on_device.wait(60)

    def abort(self) -> None:
        with self._lock:
            self.aborted.set()


def connected_by(connecting: Connecting, communicator: Any) -> tuple[threading.Thread, list[str]]:
    failed: list[str] = []

    def connect() -> None:
        try:
            connecting.connect(communicator, DEVICE)
        except RuntimeError as error:
            failed.append(str(error))

    thread = threading.Thread(target=connect)
    thread.start()
    assert communicator.begun.wait(60)
    return thread, failed


@pytest.mark.parametrize("lazy", [False, True])
def test_who_waits_goes_on_at_once_and_what_is_left_behind_is_aborted_when_it_can_be(lazy: bool) -> None:
    connecting, communicator = Connecting(), Communicator(lazy=lazy)
    thread, failed = connected_by(connecting, communicator)
    assert connecting.give_up(communicator)
    thread.join(60)
    assert ["was given up while it was connected" in reason for reason in failed] == [True]
    assert not communicator.aborted.is_set()
    communicator.peer_comes.set()
    assert communicator.aborted.wait(60)


def test_one_whose_collective_is_on_the_device_is_aborted_like_any_other() -> None:
    connecting, communicator = Connecting(), Communicator()
    thread, failed = connected_by(connecting, communicator)
    communicator.peer_comes.set()
    assert communicator.queued.wait(60)
    assert not connecting.give_up(communicator)
    communicator.on_device.set()
    thread.join(60)
    assert failed == []
    assert not connecting.give_up(communicator)


def test_fewer_ranks_than_there_are_is_a_failure() -> None:
    connecting, communicator = Connecting(), Communicator(size=3)
    thread, failed = connected_by(connecting, communicator)
    communicator.peer_comes.set()
    communicator.on_device.set()
    thread.join(60)
    assert failed == ["torchrelay: NCCL connected 2 of 3 ranks"]


def test_what_fails_by_itself_raises_where_it_is_waited_for() -> None:
    connecting, communicator = Connecting(), Communicator(error=RuntimeError("NCCL error: remote process exited"))
    thread, failed = connected_by(connecting, communicator)
    communicator.peer_comes.set()
    thread.join(60)
    assert failed == ["NCCL error: remote process exited"]
