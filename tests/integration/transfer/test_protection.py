"""What goes between machines is authenticated, message by message, or encrypted.

Both ends are made to think that they are on two machines."""

from __future__ import annotations

import contextlib
import queue
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from integration.transfer.transfer_harness import GENERATION, TOKEN, Proxy, blank, serving, take

from torchrelay.protocol.errors import ChannelClosedError, RefusedError, TorchrelayError, UserError
from torchrelay.protocol.journals.kept import whole_copies
from torchrelay.protocol.messages import CopyTaken, TakeCopy
from torchrelay.protocol.security import tls_contexts
from torchrelay.protocol.security.tls import of_one_server
from torchrelay.protocol.security.transfer_protection import FULL, INTEGRITY, OFF, checked
from torchrelay.shim.replicas.peer_exchange import Taker
from torchrelay.shim.transfer import channel as channels
from torchrelay.shim.transfer import rows
from torchrelay.shim.transfer.channel import Channel
from torchrelay.shim.transfer.handshake import Identity, admit, introduce

pytestmark = pytest.mark.core

TENSORS = {"large": torch.rand(3 << 20, generator=torch.Generator().manual_seed(1)), "tiny": torch.rand(7)}
MANIFEST_AT = 32 + 8 + 2 + 1 + 32 + 60
"""An offset into what the donor sends that is behind the handshake, in the manifest."""

IDENTITY = "".join(of_one_server("a donor"))
KNOWN = b"a known tensor, as it lies in memory: " * 200


@pytest.fixture
def two_machines(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Channel, "is_local", lambda self: False)


@pytest.fixture
def pair() -> Iterator[tuple[Channel, Channel]]:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        one = socket.create_connection(listener.getsockname())
        other, _ = listener.accept()
    ends = Channel(one, time.monotonic() + 120), Channel(other, time.monotonic() + 120)
    yield ends
    for end in ends:
        end.close()


def test_everything_arrives_and_is_proven(two_machines: None) -> None:
    destinations = blank(TENSORS)
    with serving(TENSORS) as (donor, port, log):
        take(port, destinations)
        assert donor.wait(60)
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


@pytest.mark.parametrize("donors", [OFF, INTEGRITY])
def test_nobody_talks_a_donor_out_of_it(monkeypatch: pytest.MonkeyPatch, donors: str) -> None:
    """Also not by looking as if both were on one machine, where nothing is proven."""
    with serving(TENSORS, protection=donors) as (donor, port, log):
        monkeypatch.setattr(Channel, "is_local", lambda self: self._socket.getpeername()[1] == port)
        with pytest.raises(RefusedError, match="was asked for less"):
            take(port, blank(TENSORS), protection=donors)
        if donors == INTEGRITY:
            monkeypatch.setattr(Channel, "is_local", lambda self: False)
            with pytest.raises(RefusedError, match="was asked for less"):
                take(port, blank(TENSORS), protection=OFF)
        assert not donor.wait(0)
    assert "less protection" in log[0]


MARK = bytes(range(1, 65))
OF_MARKS = {
    "a large one": torch.frombuffer(bytearray(MARK * 4096), dtype=torch.uint8),
    "a packed one": torch.frombuffer(bytearray(MARK * 8), dtype=torch.uint8),
    "whole numbers": torch.frombuffer(bytearray(MARK * 4096), dtype=torch.int64),
}
NUMBERS = torch.frombuffer(bytearray(MARK * 4096), dtype=torch.float32)


class Changing(Proxy):
    """Changes a byte where MARK is, `times` times. Nothing that goes with tensors to find damage finds that."""

    def __init__(self, port: int, patch: pytest.MonkeyPatch, times: int = 1) -> None:
        self.changed, self._times = 0, times
        for end in ("sink", "source"):
            patch.setattr(f"torchrelay.shim.transfer.{end}.chunk_check", lambda *_: bytes(rows.CHECK_BYTES))
        patch.setattr(rows.Rows, "seal", lambda self: bytes(rows.SEAL_BYTES))
        super().__init__(port, self._change)

    def _change(self, connection: int, offset: int, data: bytearray) -> None:
        if self.changed < self._times and (place := data.find(MARK)) >= 0:
            data[place] ^= 0x10
            self.changed += 1


@pytest.mark.parametrize("path", OF_MARKS)
def test_with_off_a_changed_byte_of_what_may_be_unpickled_ends_the_connection(
    two_machines: None, monkeypatch: pytest.MonkeyPatch, path: str
) -> None:
    tensors = {"weight": torch.rand(1 << 20), path: OF_MARKS[path]}
    with serving(tensors, protection=OFF) as (donor, port, _), Changing(port, monkeypatch) as proxy:
        with pytest.raises(ChannelClosedError, match="not what the peer has sent"):
            take(proxy.port, blank(tensors), connections=1, protection=OFF)
        assert not donor.wait(0)
    assert proxy.changed


class Heard:
    """The link of a rank that keeps copies of others."""

    def __init__(self) -> None:
        self.said: queue.SimpleQueue[CopyTaken] = queue.SimpleQueue()

    def send(self, report: CopyTaken) -> None:
        self.said.put(report)


@pytest.mark.parametrize("protection", [OFF, INTEGRITY])
def test_a_copy_whose_journal_was_changed_on_the_way_is_not_kept(
    two_machines: None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, protection: str
) -> None:
    """Whoever takes over from such a copy unpickles its journal."""
    parts = {"kept/journal": MARK * 9, "kept/set-up": b"set-up", "kept/layout": b"layout"}
    tensors = {path: torch.frombuffer(bytearray(data), dtype=torch.uint8) for path, data in parts.items()}
    tensors["weight"] = torch.rand(1 << 18)
    link = Heard()
    taker = Taker(link, tmp_path, protection)  # type: ignore[arg-type]  # a stand-in
    with serving(tensors, protection=protection) as (_, port, _), Changing(port, monkeypatch, 99) as proxy:
        taker.take(TakeCopy(0, GENERATION, "127.0.0.1", proxy.port, TOKEN))
        assert "not what the peer has sent" in link.said.get(timeout=60).reason
        assert whole_copies(tmp_path) == {}
        assert proxy.changed
        taker.take(TakeCopy(0, GENERATION, "127.0.0.1", port, TOKEN))
        assert link.said.get(timeout=60).reason == ""
    ((_, kept),) = whole_copies(tmp_path)[0]
    assert kept.journal == MARK * 9
    taker.close()


def test_off_leaves_floating_point_numbers_alone_unproven(two_machines: None, monkeypatch: pytest.MonkeyPatch) -> None:
    tensors, destinations = {"weight": NUMBERS}, blank({"weight": NUMBERS})
    with serving(tensors, protection=OFF) as (donor, port, _), Changing(port, monkeypatch) as proxy:
        take(proxy.port, destinations, connections=1, protection=OFF)
        assert donor.wait(60)
    assert proxy.changed
    assert int((destinations["weight"] != NUMBERS).sum()) == 1


def test_on_one_machine_nothing_is_added() -> None:
    asked: list[object] = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(channels.Channel, "authenticate", lambda self, ours, theirs: asked.append(self))
        with serving(TENSORS, protection=INTEGRITY) as (donor, port, _):
            take(port, blank(TENSORS))
            assert donor.wait(60)
    assert asked == []


def test_full_brings_everything(two_machines: None) -> None:
    destinations = blank(TENSORS)
    with serving(TENSORS, protection=FULL, identity=IDENTITY) as (donor, port, log):
        stats = take(port, destinations, protection=FULL)
        assert donor.wait(60)
    assert log == []
    assert stats.chunks_asked_again == 0
    assert all(torch.equal(TENSORS[path], destinations[path]) for path in TENSORS)


@pytest.mark.parametrize(("protection", "seen"), [(INTEGRITY, True), (FULL, False)])
def test_who_listens_reads_no_tensor_and_no_name_of_one_with_full(
    two_machines: None, protection: str, seen: bool
) -> None:
    """What is heard with `integrity` shows that the listener listens in the right place."""
    known = {"secret.weight": torch.frombuffer(bytearray(KNOWN), dtype=torch.uint8)}
    heard: dict[int, bytearray] = {}

    def listen(connection: int, offset: int, data: bytearray) -> None:
        heard.setdefault(connection, bytearray()).extend(data)

    destinations = blank(known)
    with (
        serving(known, protection=protection, identity=IDENTITY) as (donor, port, _),
        Proxy(port, listen) as proxy,
    ):
        take(proxy.port, destinations, protection=protection)
        assert donor.wait(60)
    assert torch.equal(known["secret.weight"], destinations["secret.weight"])
    said = b"".join(bytes(part) for part in heard.values())
    assert len(said) > len(KNOWN)
    assert [what in said for what in (KNOWN[:32], b"secret.weight")] == [seen, seen]


def test_one_byte_that_was_changed_on_the_way_ends_an_encrypted_connection(two_machines: None) -> None:
    hit: list[int] = []

    def meddle(connection: int, offset: int, data: bytearray) -> None:
        if offset <= 1_000_000 < offset + len(data):
            data[1_000_000 - offset] ^= 0x10
            hit.append(connection)

    with serving(TENSORS, protection=FULL, identity=IDENTITY) as (donor, port, _), Proxy(port, meddle) as proxy:
        with pytest.raises(ChannelClosedError, match=r"(?i)mac"):
            take(proxy.port, blank(TENSORS), connections=1, protection=FULL)
        assert not donor.wait(0)
    assert hit


def test_an_encrypted_connection_that_is_cut_is_replaced_by_the_others(two_machines: None) -> None:
    """The connections beside it say no tensor before it was cut, and are many enough for what is left."""
    tensors = {f"part.{n}": torch.rand(1 << 20, generator=torch.Generator().manual_seed(n)) for n in range(12)}
    cut = threading.Event()

    def meddle(connection: int, offset: int, data: bytearray) -> None:
        if connection == 1 and offset > 100_000:
            cut.set()
            raise ConnectionError
        if offset > 100_000:
            assert cut.wait(30)

    destinations = blank(tensors)
    with serving(tensors, protection=FULL, identity=IDENTITY) as (donor, port, _), Proxy(port, meddle) as proxy:
        take(proxy.port, destinations, connections=3, protection=FULL)
        assert donor.wait(60)
    assert cut.is_set()
    assert all(torch.equal(tensors[path], destinations[path]) for path in tensors)


class Between:
    """Ends TLS of the receiver with a certificate of its own, begins TLS with the donor, and hands on what it reads."""

    def __init__(self, port: int) -> None:
        self._target, self.read = port, bytearray()
        self._context = tls_contexts.of_server("".join(of_one_server("somebody between")))
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self._thread = threading.Thread(target=self._run)

    def __enter__(self) -> Between:
        self._thread.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self._listener.close()
        self._thread.join()

    def _run(self) -> None:
        client, _ = self._listener.accept()
        server = socket.create_connection(("127.0.0.1", self._target))
        with (
            self._context.wrap_socket(client, server_side=True) as near,
            tls_contexts.to_whoever_proves_it().wrap_socket(server) as far,
        ):
            near.sendall(far.recv(1 << 16))  # the greeting
            hello = near.recv(1 << 16)
            self.read += hello
            far.sendall(hello)
            with contextlib.suppress(OSError):
                near.sendall(far.recv(1 << 16))


def test_whoever_sits_between_with_a_certificate_of_its_own_is_found(two_machines: None) -> None:
    with serving(TENSORS, protection=FULL, identity=IDENTITY) as (donor, port, log):
        with Between(port) as between, pytest.raises(RefusedError, match="another token"):
            take(between.port, blank(TENSORS), protection=FULL, connections=1)
        assert not donor.wait(0)
    assert between.read, "nobody was between"
    assert "wrong token" in log[0]


def test_a_donor_whose_answer_is_for_another_certificate_is_none(pair: tuple[Channel, Channel]) -> None:
    """The receiver looks for itself: the donor's word alone would not do."""
    ours, theirs = pair
    other = Identity("".join(of_one_server("another")))
    shown = Identity(IDENTITY)
    other.context = shown.context

    def serve() -> None:
        with contextlib.suppress(RefusedError, ChannelClosedError):
            admit(theirs, 1, "token", time.monotonic() + 60, FULL, other)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Channel, "is_local", lambda self: False)
        thread = threading.Thread(target=serve)
        thread.start()
        with pytest.raises(RefusedError, match="another token"):
            introduce(ours, 1, "token", 0, FULL)
        thread.join()


@pytest.mark.parametrize("asked", [OFF, INTEGRITY])
def test_nobody_talks_a_donor_out_of_encryption(two_machines: None, asked: str) -> None:
    with serving(TENSORS, protection=FULL, identity=IDENTITY) as (donor, port, _):
        with pytest.raises((RefusedError, ChannelClosedError)):
            take(port, blank(TENSORS), protection=asked, deadline_s=1.0)
        assert not donor.wait(0)


def test_nobody_talks_a_receiver_out_of_encryption(two_machines: None) -> None:
    with serving(TENSORS, protection=INTEGRITY) as (donor, port, _):
        with pytest.raises(RefusedError, match="has to be the same on all machines"):
            take(port, blank(TENSORS), protection=FULL)
        assert not donor.wait(0)


def test_what_was_recorded_of_an_encrypted_connection_is_worth_nothing(two_machines: None) -> None:
    said: list[bytes] = []

    class Listening(Proxy):
        def _forward(self, source: socket.socket, target: socket.socket, number: int | None) -> None:
            if number is None:
                said.append(source.recv(1 << 16, socket.MSG_PEEK))
            super()._forward(source, target, number)

    with serving(TENSORS, protection=FULL, identity=IDENTITY) as (donor, port, log):
        with Listening(port, lambda *_: None) as proxy:
            take(proxy.port, blank(TENSORS), protection=FULL, connections=1)
            # The receiver's last word is still on its way through the proxy, which would lose it by ending.
            assert donor.wait(60)
        with socket.create_connection(("127.0.0.1", port)) as again:
            again.settimeout(60)
            again.sendall(said[0])
            # The donor answers with a key of this connection: whoever has only listened before cannot go on.
            answer = again.recv(1 << 16)
            assert answer
            assert b"TRTENSOR" not in answer
            again.sendall(said[0])
            with contextlib.suppress(ConnectionResetError):
                while part := again.recv(1 << 16):
                    assert b"TRTENSOR" not in part
    assert "TLS" in log[0]


def test_full_without_a_certificate_serves_nobody(two_machines: None) -> None:
    with pytest.raises(RefusedError, match="no certificate"), serving(TENSORS, protection=FULL):
        pass


def test_with_full_nothing_is_added_on_one_machine() -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Channel, "encrypt", lambda *_, **__: pytest.fail("encrypted on one machine"))
        patch.setattr(Channel, "authenticate", lambda *_: pytest.fail("authenticated on one machine"))
        with serving(TENSORS, protection=FULL, identity=IDENTITY) as (donor, port, _):
            take(port, blank(TENSORS), protection=FULL)
            assert donor.wait(60)


def test_who_says_nothing_on_an_encrypted_connection_is_not_waited_for_longer(pair: tuple[Channel, Channel]) -> None:
    ours, theirs = pair
    identity = Identity(IDENTITY)
    thread = threading.Thread(target=lambda: theirs.encrypt(identity.context, as_server=True))
    thread.start()
    ours.encrypt(tls_contexts.to_whoever_proves_it(), as_server=False)
    thread.join()
    ours.patience_s = 0.2
    with pytest.raises(ChannelClosedError, match="nothing moved in time"):
        ours.wait()
    ours.patience_s = 60.0
    theirs.send(b"word")
    ours.wait()
    ours.wait()
    assert ours.receive(4) == b"word"
    threading.Timer(0.2, ours.wake).start()
    started_s = time.monotonic()
    with pytest.raises(ChannelClosedError):
        ours.wait()
    assert time.monotonic() - started_s < 30


def test_a_choice_that_is_none_is_named() -> None:
    assert checked(INTEGRITY) == INTEGRITY
    with pytest.raises(UserError, match="one of off, integrity, full"):
        checked("much")
    assert issubclass(UserError, TorchrelayError)
