"""Who ends a connection that another thread waits in wakes that thread; only the thread itself closes the descriptor."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Iterator

import pytest
import torch
from integration.transfer.transfer_harness import Proxy, blank, serving, take

from torchrelay.protocol.errors import StateMismatchError
from torchrelay.shim.transfer import channel as channel_module
from torchrelay.shim.transfer import donor as donor_module
from torchrelay.shim.transfer.channel import Channel

pytestmark = pytest.mark.core

LARGE = {"large": torch.rand(5 << 20, generator=torch.Generator().manual_seed(1))}
_HANDSHAKE_BYTES = 42 + 33
"""What a donor says before it is asked for anything."""


class Watch:
    """Makes channels that know which threads wait in them, and notes those that are closed meanwhile."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self.made: list[Channel] = []
        self._waiting: list[Channel] = []
        self.closed_under_a_thread: list[int] = []

    def channel(self, sock: socket.socket, deadline: float) -> Channel:
        watch = self

        class Watched(Channel):
            def fill(self, view: memoryview) -> None:
                with watch._within(self):
                    super().fill(view)

            def wait(self) -> None:
                with watch._within(self):
                    super().wait()

            def close(self) -> None:
                with watch._changed:
                    if self in watch._waiting:
                        watch.closed_under_a_thread.append(watch.made.index(self))
                super().close()

        made = Watched(sock, deadline)
        with self._changed:
            self.made.append(made)
        return made

    @contextlib.contextmanager
    def _within(self, channel: Channel) -> Iterator[None]:
        with self._changed:
            self._waiting.append(channel)
            self._changed.notify_all()
        try:
            yield
        finally:
            with self._changed:
                self._waiting.remove(channel)

    def until_waited_in(self, number: int) -> None:
        """Returns when a thread waits in the channel that was made as the `number`-th."""
        with self._changed:
            there = self._changed.wait_for(
                lambda: number < len(self.made) and self.made[number] in self._waiting, timeout=60
            )
        assert there


@pytest.fixture
def watch(monkeypatch: pytest.MonkeyPatch) -> Watch:
    monkeypatch.setattr(channel_module, "STALL_S", 600.0)  # what comes loose does so since it was woken
    return Watch()


def test_a_receiver_that_gives_up_wakes_the_threads_that_still_wait_for_the_donor(
    watch: Watch, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(channel_module, "Channel", watch.channel)
    holding_back, over = threading.Event(), threading.Event()
    came_loose: list[bool] = []
    damaged = range(500_000, 20_000_000, 50_000)  # in every chunk, also in those that are asked for again

    def meddle(connection: int, offset: int, data: bytearray) -> None:
        if connection == 1 and offset >= _HANDSHAKE_BYTES and not came_loose:
            holding_back.set()
            came_loose.append(over.wait(60))
        for place in damaged:
            if connection == 0 and offset <= place < offset + len(data):
                if place == damaged[0]:
                    assert holding_back.wait(60)
                    watch.until_waited_in(1)
                data[place - offset] ^= 0x10

    with serving(LARGE) as (_, port, _log), Proxy(port, meddle) as proxy:
        with pytest.raises(StateMismatchError, match="arrived damaged twice"):
            take(proxy.port, blank(LARGE), connections=2)
        over.set()
    assert came_loose == [True], "while the donor still said nothing"
    assert watch.closed_under_a_thread == []


def test_a_crowded_donor_wakes_the_thread_of_the_client_that_has_to_go(
    watch: Watch, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(donor_module, "Channel", watch.channel)
    monkeypatch.setattr(donor_module, "_HELLO_DEADLINE_S", 600.0)
    monkeypatch.setattr(donor_module, "_MAX_CONNECTIONS", 1)
    with serving(LARGE) as (_, port, _log):
        silent = [socket.create_connection(("127.0.0.1", port), timeout=60)]
        watch.until_waited_in(0)
        silent.append(socket.create_connection(("127.0.0.1", port), timeout=60))
        with silent[0].makefile("rb") as said:
            assert len(said.read()) == 42, "greeted, and then sent away"
        watch.until_waited_in(1)
    assert watch.closed_under_a_thread == [], "neither by the newcomer, nor when the donor is closed"
    for sock in silent:
        sock.close()
