"""The wait for a peer that never comes can be given up, whatever torch's own lock says."""

from __future__ import annotations

import contextlib
import threading
from typing import Any

import pytest
import torch

from torchrelay.shim.backends.nccl_connecting import Connecting

DEVICE = torch.device("cuda", 1)


@pytest.fixture(autouse=True)
def _no_device(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "device", lambda device: contextlib.nullcontext())


class Communicator:
    """As torch's: it holds its lock while it connects, and aborts under it."""

    def __init__(self, error: RuntimeError | None = None) -> None:
        self.lock, self.begun, self.peer_comes, self.aborted = (
            threading.Lock(),
            threading.Event(),
            threading.Event(),
            threading.Event(),
        )
        self.error = error

    def eager_connect_single_device(self, device: torch.device) -> None:
        assert device == DEVICE
        with self.lock:
            self.begun.set()
            assert self.peer_comes.wait(60)
            if self.error is not None:
                raise self.error

    def abort(self) -> None:
        with self.lock:
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


def test_who_waits_goes_on_at_once_and_what_is_left_behind_is_aborted_when_it_can_be() -> None:
    connecting, communicator = Connecting(), Communicator()
    thread, failed = connected_by(connecting, communicator)
    assert connecting.give_up(communicator)
    thread.join(60)
    assert ["was given up while it was connected" in reason for reason in failed] == [True]
    assert not communicator.aborted.is_set()
    communicator.peer_comes.set()
    assert communicator.aborted.wait(60)


def test_one_that_is_connected_is_aborted_like_any_other() -> None:
    connecting, communicator = Connecting(), Communicator()
    thread, failed = connected_by(connecting, communicator)
    communicator.peer_comes.set()
    thread.join(60)
    assert failed == []
    assert not connecting.give_up(communicator)


def test_what_fails_by_itself_raises_where_it_is_waited_for() -> None:
    connecting, communicator = Connecting(), Communicator(RuntimeError("NCCL error: remote process exited"))
    thread, failed = connected_by(connecting, communicator)
    communicator.peer_comes.set()
    thread.join(60)
    assert failed == ["NCCL error: remote process exited"]
