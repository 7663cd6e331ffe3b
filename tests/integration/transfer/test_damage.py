from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable

import pytest
import torch
from integration.transfer.transfer_harness import (
    Proxy,
    blank,
    donor_process,
    serving,
    take,
    tensors_of_donor_program,
)

from torchrelay.protocol.errors import ChannelClosedError, FrameError, RetryableError, StateMismatchError
from torchrelay.shim.transfer import channel as channel_module
from torchrelay.shim.transfer import receiver
from torchrelay.shim.transfer.sink import Sink
from torchrelay.shim.transfer.source import TensorSource

pytestmark = pytest.mark.core

LARGE = {"large": torch.rand(5 << 20, generator=torch.Generator().manual_seed(1))}
TINY = {f"tiny.{i}": torch.rand(200, generator=torch.Generator().manual_seed(i)) for i in range(3000)}


def flip_at(*places: int) -> tuple[list[int], Callable[[int, int, bytearray], None]]:
    """What was hit, and a meddler that flips a bit of the byte at each of these offsets of the first connection."""
    hit: list[int] = []

    def meddle(connection: int, offset: int, data: bytearray) -> None:
        for place in places:
            if connection == 0 and offset <= place < offset + len(data):
                data[place - offset] ^= 0x10
                hit.append(place)

    return hit, meddle


@pytest.mark.parametrize("tensors", [LARGE, TINY], ids=["large", "tiny"])
def test_one_flipped_bit_is_found_and_its_chunk_asked_for_again(tensors: dict[str, torch.Tensor]) -> None:
    # Far behind the manifest, within the first two chunks, which the first connection gets.
    hit, meddle = flip_at(1_000_000)
    destinations = blank(tensors)
    with serving(tensors) as (donor, port, _), Proxy(port, meddle) as proxy:
        stats = take(proxy.port, destinations, connections=1)
        assert donor.wait(60)
    assert hit == [1_000_000]
    assert stats.chunks_asked_again == 1
    assert all(torch.equal(tensors[path], destinations[path]) for path in tensors)


def test_content_that_is_damaged_twice_is_never_accepted() -> None:
    hit, meddle = flip_at(*range(500_000, 20_000_000, 50_000))
    with serving(LARGE) as (donor, port, _), Proxy(port, meddle) as proxy:
        with pytest.raises(StateMismatchError, match="large"):
            take(proxy.port, blank(LARGE), connections=1)
        assert not donor.wait(0)
    assert len(hit) > 2


def test_damage_in_a_message_between_the_chunks_is_not_taken_for_content() -> None:
    def meddle(connection: int, offset: int, data: bytearray) -> None:
        # The manifest, right after greeting (42 bytes), answer (33) and its head (16).
        if offset <= 93 < offset + len(data):
            data[93 - offset] ^= 0xFF

    with (
        serving(LARGE) as (_, port, _log),
        Proxy(port, meddle) as proxy,
        pytest.raises((FrameError, ChannelClosedError)),
    ):
        take(proxy.port, blank(LARGE))


def test_sides_that_disagree_in_the_end_are_told_apart_by_tensor(monkeypatch: pytest.MonkeyPatch) -> None:
    tensors = {"left": torch.rand(3 << 18), "right": torch.rand(3 << 18)}
    accept = Sink.accept

    def wrong(self: Sink, index: int) -> None:
        accept(self, index)
        self.rows.put(1, 0, torch.zeros((1, 2), dtype=torch.int64))

    monkeypatch.setattr(Sink, "accept", wrong)
    with serving(tensors) as (donor, port, _):
        with pytest.raises(StateMismatchError, match="differs from the source's: right"):
            take(port, blank(tensors))
        assert not donor.wait(0)


@pytest.mark.parametrize("cut", [(1,), (0,), (0, 1, 2)], ids=str)
def test_connections_that_break_leave_the_work_to_the_others(cut: tuple[int, ...]) -> None:
    broken: list[int] = []
    together = threading.Barrier(4, timeout=60)
    waited: set[int] = set()

    def meddle(connection: int, offset: int, data: bytearray) -> None:
        if offset + len(data) < 300_000:
            return
        if connection not in waited:
            # All are in the middle of a chunk.
            waited.add(connection)
            together.wait()
        if connection in cut:
            broken.append(connection)
            raise ConnectionResetError

    tensors = {f"large.{i}": torch.rand(3 << 20) for i in range(3)}
    destinations = blank(tensors)
    with serving(tensors) as (donor, port, _), Proxy(port, meddle) as proxy:
        take(proxy.port, destinations, connections=4)
        assert donor.wait(60)
    assert sorted(broken) == list(cut)
    assert all(torch.equal(tensors[path], destinations[path]) for path in tensors)


def test_the_end_of_all_connections_is_an_error_that_can_be_tried_again() -> None:
    def meddle(connection: int, offset: int, data: bytearray) -> None:
        if offset + len(data) > 300_000:
            raise ConnectionResetError

    with (
        serving(LARGE) as (_, port, _log),
        Proxy(port, meddle) as proxy,
        pytest.raises(RetryableError, match="all connections"),
    ):
        take(proxy.port, blank(LARGE))


def test_a_connection_that_stalls_does_not_hold_up_the_rest(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(channel_module, "STALL_S", 4.0)
    over = threading.Event()

    def meddle(connection: int, offset: int, data: bytearray) -> None:
        if connection == 1 and offset + len(data) > 300_000:
            over.wait(60)

    tensors = {f"large.{i}": torch.rand(3 << 20) for i in range(3)}
    destinations = blank(tensors)
    with serving(tensors) as (_, port, _log), Proxy(port, meddle) as proxy:
        try:
            take(proxy.port, destinations)
        finally:
            over.set()
    assert all(torch.equal(tensors[path], destinations[path]) for path in tensors)


def test_a_donor_that_is_killed_in_the_middle_is_noticed_at_once() -> None:
    tensors = tensors_of_donor_program()
    with donor_process() as (process, port):

        def meddle(connection: int, offset: int, data: bytearray) -> None:
            if offset + len(data) > 500_000 and process.poll() is None:
                os.kill(process.pid, signal.SIGKILL)

        with Proxy(port, meddle) as proxy, pytest.raises(ChannelClosedError):
            take(proxy.port, blank(tensors))
        assert process.wait() == -signal.SIGKILL


def test_an_error_of_the_receivers_own_comes_through_and_ends_every_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*arguments: object) -> None:
        raise RuntimeError("the device failed")

    before = set(threading.enumerate())
    monkeypatch.setattr(receiver.Sink, "read_chunk", fail)
    with serving(LARGE) as (_, port, _log), pytest.raises(RuntimeError, match="the device failed"):
        take(port, blank(LARGE))
    assert set(threading.enumerate()) <= before


def test_a_donor_that_cannot_read_its_tensors_says_so_and_ends_the_connection(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def fail(*arguments: object) -> None:
        raise RuntimeError("the device failed")

    monkeypatch.setattr(TensorSource, "write_chunk", fail)
    with serving(LARGE) as (_, port, log), pytest.raises(ChannelClosedError):
        take(port, blank(LARGE))
    assert any("the device failed" in text for text in log)
