"""Several donors of the same tensors: who gives, who stands in for whom, and what is never mixed."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterator

import pytest
import torch
from integration.transfer.transfer_harness import Proxy, blank, serving, take

from torchrelay.protocol.errors import ChannelClosedError, StateMismatchError
from torchrelay.shim.transfer import Arrived, receiver
from torchrelay.shim.transfer.layout import CHUNK_BYTES

pytestmark = pytest.mark.core

HERE = "127.0.0.1"
PATIENCE_S = 30.0


def state(fill: int = 0) -> dict[str, torch.Tensor]:
    chance = torch.Generator().manual_seed(3)
    large = {f"large.{i}": torch.rand(CHUNK_BYTES // 4, generator=chance) for i in range(6)}
    return {**large, "turned": torch.rand(900, 1200, generator=chance).t(), "tiny": torch.full((5,), float(fill))}


class Watched:
    """A donor behind a proxy that counts what it says, and lets the test meddle."""

    def __init__(self, port: int, meddle: Callable[[int], None] = lambda said: None) -> None:
        self.said_bytes, self._meddle = 0, meddle
        self._lock = threading.Lock()
        self.proxy = Proxy(port, self._count)

    def _count(self, connection: int, offset: int, data: bytearray) -> None:
        with self._lock:
            self.said_bytes += len(data)
            said = self.said_bytes
        self._meddle(said)

    @property
    def address(self) -> tuple[str, int]:
        return HERE, self.proxy.port


@contextlib.contextmanager
def watched(tensors: dict[str, torch.Tensor], meddle: Callable[[int], None] = lambda said: None) -> Iterator[Watched]:
    with serving(tensors) as (_, port, _log):
        donor = Watched(port, meddle)
        with donor.proxy:
            yield donor


def dies_at(limit_bytes: int) -> Callable[[int], None]:
    def meddle(said: int) -> None:
        if said > limit_bytes:
            raise ConnectionError

    return meddle


def equal(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> bool:
    return one.keys() == other.keys() and all(torch.equal(one[path], other[path]) for path in one)


def test_all_give_at_the_same_time() -> None:
    """The first one says no more than its share until the second has given something too."""
    tensors, given = state(), threading.Event()
    destinations = blank(tensors)

    def only_together(said: int) -> None:
        if said > CHUNK_BYTES // 2:
            assert given.wait(PATIENCE_S)

    def has_given(said: int) -> None:
        if said > CHUNK_BYTES // 2:
            given.set()

    with watched(tensors, only_together) as first, watched(tensors, has_given) as second:
        stats = take(first.proxy.port, destinations, more=[second.address])
        assert min(first.said_bytes, second.said_bytes) > CHUNK_BYTES // 2
    assert equal(tensors, destinations)
    assert (stats.donors, stats.differed) == (2, "")


def test_one_more_donor_than_connections_still_gives_each_a_connection() -> None:
    tensors = state()
    destinations = blank(tensors)
    with contextlib.ExitStack() as stack:
        donors = [stack.enter_context(watched(tensors)) for _ in range(3)]
        take(donors[0].proxy.port, destinations, more=[d.address for d in donors[1:]], connections=1)
        assert all(donor.said_bytes for donor in donors)
    assert equal(tensors, destinations)


@pytest.mark.parametrize("dies", [0, 1], ids=["the first one", "the other one"])
def test_the_other_one_goes_on_when_one_dies_in_the_midst(dies: int) -> None:
    tensors, dead = state(), threading.Event()
    destinations = blank(tensors)

    def dying(said: int) -> None:
        if said > 3 * CHUNK_BYTES // 2:
            dead.set()
            raise ConnectionError

    def surviving(said: int) -> None:
        if said > CHUNK_BYTES // 2:
            assert dead.wait(PATIENCE_S)

    meddling = [dying, surviving] if dies == 0 else [surviving, dying]
    with watched(tensors, meddling[0]) as first, watched(tensors, meddling[1]) as second:
        take(first.proxy.port, destinations, more=[second.address])
    assert dead.is_set()
    assert equal(tensors, destinations)


def test_one_that_stands_frozen_holds_nobody_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is there and says nothing more: what it was asked for comes from the other one, long before the deadline."""
    monkeypatch.setattr(receiver, "_PATIENCE_S", 2.0)
    tensors, stuck, over = state(), threading.Event(), threading.Event()
    destinations = blank(tensors)

    def frozen(said: int) -> None:
        if said > CHUNK_BYTES // 2:
            stuck.set()
            assert over.wait(PATIENCE_S)

    def after_it(said: int) -> None:
        if said > CHUNK_BYTES // 2:
            assert stuck.wait(PATIENCE_S)

    with watched(tensors, after_it) as first, watched(tensors, frozen) as second:
        started_s = time.monotonic()
        take(first.proxy.port, destinations, more=[second.address], deadline_s=300.0)
        taken_s = time.monotonic() - started_s
        over.set()
    assert equal(tensors, destinations)
    assert stuck.is_set()
    assert taken_s < 10.0  # in the middle of a message a donor that is alone has 15 s


def test_one_that_is_not_there_is_done_without() -> None:
    tensors = state()
    with watched(tensors) as there, watched(tensors) as gone:
        pass
    for order in (True, False):
        destinations = blank(tensors)
        with watched(tensors) as there:
            donors = [gone.address, there.address] if order else [there.address, gone.address]
            take(donors[0][1], destinations, more=donors[1:])
        assert equal(tensors, destinations)


def test_all_dead_is_an_error() -> None:
    tensors = state()
    with (
        watched(tensors, dies_at(100)) as first,
        watched(tensors, dies_at(100)) as second,
        pytest.raises(ChannelClosedError),
    ):
        take(first.proxy.port, blank(tensors), more=[second.address])


def test_one_that_holds_other_tensors_gives_nothing() -> None:
    tensors = state()
    destinations, other = blank(tensors), {**state(), "more": torch.ones(CHUNK_BYTES)}
    with watched(tensors) as first, watched(other) as second:
        take(first.proxy.port, destinations, more=[second.address])
        assert second.said_bytes < CHUNK_BYTES // 2
    assert equal(tensors, destinations)


def test_contents_are_never_mixed() -> None:
    """Their names are equal, and one bit is not: everything is the first one's then."""
    tensors, given = state(), threading.Event()
    destinations, other = blank(tensors), {path: tensor + 1 for path, tensor in state().items()}

    def after_the_other(said: int) -> None:
        if said > CHUNK_BYTES // 2:
            assert given.wait(PATIENCE_S)

    def has_given(said: int) -> None:
        if said > CHUNK_BYTES // 2:
            given.set()

    with watched(tensors, after_the_other) as first, watched(other, has_given) as second:
        stats = take(first.proxy.port, destinations, more=[second.address])
        assert second.said_bytes > CHUNK_BYTES // 2
    assert equal(tensors, destinations)
    assert stats.donors == 1
    assert stats.report(3).differed.startswith("content differs from the source's: large.")


def broken_off(tensors: dict[str, torch.Tensor], destinations: dict[str, torch.Tensor], after_bytes: int) -> Arrived:
    arrived = Arrived()
    with watched(tensors, dies_at(after_bytes)) as donor, pytest.raises(ChannelClosedError):
        take(donor.proxy.port, destinations, arrived=arrived, connections=1)
    return arrived


def test_what_has_arrived_before_a_donor_died_is_not_sent_again() -> None:
    tensors = state()
    destinations = blank(tensors)
    arrived = broken_off(tensors, destinations, 4 * CHUNK_BYTES)
    with watched(tensors) as another:
        stats = take(another.proxy.port, destinations, arrived=arrived)
        assert another.said_bytes < 5 * CHUNK_BYTES
    assert equal(tensors, destinations)
    assert stats.size_bytes == sum(t.numel() * t.element_size() for t in tensors.values())


def test_what_has_arrived_of_another_content_is_thrown_away() -> None:
    tensors = state()
    destinations = blank(tensors)
    arrived = broken_off({path: tensor + 1 for path, tensor in tensors.items()}, destinations, 4 * CHUNK_BYTES)
    with watched(tensors) as another:
        take(another.proxy.port, destinations, arrived=arrived)
    assert equal(tensors, destinations)


def test_what_has_arrived_elsewhere_does_not_count() -> None:
    tensors = state()
    arrived = broken_off(tensors, blank(tensors), 4 * CHUNK_BYTES)
    destinations = blank(tensors)
    with watched(tensors) as another:
        take(another.proxy.port, destinations, arrived=arrived)
    assert equal(tensors, destinations)


def test_a_destination_that_does_not_fit_is_named_with_several_donors_too() -> None:
    tensors = {"w": torch.rand(2, 3)}
    with (
        watched(tensors) as first,
        watched(tensors) as second,
        pytest.raises(StateMismatchError, match="w"),
    ):
        take(first.proxy.port, {"w": torch.zeros(3, 2)}, more=[second.address])
