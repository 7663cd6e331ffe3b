"""What goes between machines is authenticated, message by message. Both ends are made to think that they are on two machines."""

from __future__ import annotations

import socket
import time
from collections.abc import Iterator

import pytest
import torch
from integration.transfer_harness import Proxy, blank, serving, take

from torchrelay.protocol.errors import ChannelClosedError, RefusedError, TorchrelayError, UserError
from torchrelay.protocol.transfer_protection import INTEGRITY, OFF, checked
from torchrelay.shim.transfer import channel as channels
from torchrelay.shim.transfer import rows
from torchrelay.shim.transfer.channel import Channel

TENSORS = {"large": torch.rand(3 << 20, generator=torch.Generator().manual_seed(1)), "tiny": torch.rand(7)}
MANIFEST_AT = 32 + 8 + 2 + 1 + 32 + 60
"""An offset into what the donor sends that is behind the handshake, in the manifest."""


@pytest.fixture
def two_machines(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Channel, "is_local", lambda self: False)


@pytest.fixture
def pair() -> Iterator[tuple[Channel, Channel]]:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        one = socket.create_connection(listener.getsockname())
        other, _ = listener.accept()
    ends = Channel(one, time.monotonic() + 10), Channel(other, time.monotonic() + 10)
    yield ends
    for end in ends:
        end.close()


def test_everything_arrives_and_is_proven(two_machines: None) -> None:
    destinations = blank(TENSORS)
    with serving(TENSORS) as (donor, port, log):
        take(port, destinations)
        assert donor.wait(10)
    assert log == []
    assert all(torch.equal(TENSORS[path], destinations[path]) for path in TENSORS)


@pytest.mark.parametrize("place", [MANIFEST_AT, 1_000_000], ids=["manifest", "tensor"])
def test_one_byte_that_was_changed_on_the_way_ends_the_connection(two_machines: None, place: int) -> None:
    """Also where the check that goes with the tensors would be right: whoever can change them can change that."""
    hit: list[int] = []

    def meddle(connection: int, offset: int, data: bytearray) -> None:
        if offset <= place < offset + len(data):
            data[place - offset] ^= 0x10
            hit.append(place)

    with pytest.MonkeyPatch.context() as patch, serving(TENSORS) as (donor, port, _), Proxy(port, meddle) as proxy:
        patch.setattr("torchrelay.shim.transfer.sink.chunk_check", lambda index, sums: bytes(rows.CHECK_BYTES))
        patch.setattr("torchrelay.shim.transfer.source.chunk_check", lambda index, sums: bytes(rows.CHECK_BYTES))
        with pytest.raises(ChannelClosedError, match="not what the peer has sent"):
            take(proxy.port, blank(TENSORS), connections=1)
        assert not donor.wait(0)
    assert hit


def test_a_message_that_is_played_again_or_comes_in_another_order_is_none(pair: tuple[Channel, Channel]) -> None:
    ours, theirs = pair
    ours.authenticate(b"a" * 32, b"b" * 32)
    theirs.authenticate(b"b" * 32, b"a" * 32)
    ours.send(b"first")
    ours.sign()
    assert theirs.receive(5) == b"first"
    theirs.check()
    for again in (b"first", b"other"):
        ours._send(again)
        ours._send(bytes(32))
        assert theirs.receive(5) == again
        with pytest.raises(ChannelClosedError, match="not what the peer has sent"):
            theirs.check()


def test_the_two_directions_have_keys_of_their_own(pair: tuple[Channel, Channel]) -> None:
    ours, theirs = pair
    for end in pair:
        end.authenticate(b"a" * 32, b"b" * 32)  # both speak for the same side
    ours.send(b"word")
    ours.sign()
    theirs.receive(4)
    with pytest.raises(ChannelClosedError, match="not what the peer has sent"):
        theirs.check()


def test_nobody_talks_a_donor_out_of_it(two_machines: None) -> None:
    with serving(TENSORS) as (donor, port, log):
        with pytest.raises(RefusedError, match="was asked for it without"):
            take(port, blank(TENSORS), protection=OFF)
        assert not donor.wait(0)
    assert "without protection" in log[0]


def test_off_is_off(two_machines: None) -> None:
    asked: list[object] = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Channel, "authenticate", lambda self, ours, theirs: asked.append(self))
        with serving(TENSORS, protection=OFF) as (donor, port, _):
            take(port, blank(TENSORS), protection=OFF)
            assert donor.wait(10)
    assert asked == []


def test_on_one_machine_nothing_is_added() -> None:
    asked: list[object] = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(channels.Channel, "authenticate", lambda self, ours, theirs: asked.append(self))
        with serving(TENSORS, protection=INTEGRITY) as (donor, port, _):
            take(port, blank(TENSORS))
            assert donor.wait(10)
    assert asked == []


def test_a_choice_that_is_none_is_named() -> None:
    assert checked(INTEGRITY) == INTEGRITY
    with pytest.raises(UserError, match="one of off, integrity"):
        checked("much")
    assert issubclass(UserError, TorchrelayError)
