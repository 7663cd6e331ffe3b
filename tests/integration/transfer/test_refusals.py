from __future__ import annotations

import contextlib
import os
import socket
import struct
import threading
import time
from collections.abc import Callable

import pytest
import torch
from integration.transfer.transfer_harness import GENERATION, TOKEN, blank, serving, take

from torchrelay.protocol.errors import ChannelClosedError, FrameError, RefusedError, TorchrelayError
from torchrelay.shim.transfer import donor as donor_module
from torchrelay.shim.transfer import handshake, requests
from torchrelay.shim.transfer.channel import Channel, connect

pytestmark = pytest.mark.core

TENSORS = {"a": torch.rand(3 << 20, generator=torch.Generator().manual_seed(1)), "b": torch.rand(7)}


def right_peer_is_served(port: int) -> None:
    destinations = blank(TENSORS)
    take(port, destinations)
    assert all(torch.equal(TENSORS[path], destinations[path]) for path in TENSORS)


def until_closed(sock: socket.socket) -> bytes:
    """Everything the donor says until it closes the connection."""
    sock.settimeout(60)
    said = b""
    try:
        while part := sock.recv(1 << 16):
            said += part
    except ConnectionResetError:
        pass
    return said


@pytest.mark.parametrize(
    ("options", "reason"),
    [({"token": "another"}, "token"), ({"token": ""}, "token"), ({"generation": GENERATION - 1}, "generation")],
    ids=["wrong token", "no token", "wrong generation"],
)
def test_a_peer_without_the_right_credentials_gets_no_byte_and_the_right_one_is_served(
    options: dict[str, object], reason: str
) -> None:
    with serving(TENSORS) as (_, port, log):
        for _ in range(3):
            with pytest.raises(RefusedError, match=reason):
                take(port, {}, **options)
        right_peer_is_served(port)
    assert len(log) == 1
    assert "127.0.0.1" in log[0]
    assert reason in log[0]


@pytest.mark.parametrize(
    "words",
    [os.urandom(82), os.urandom(1 << 20), b"GET / HTTP/1.1\r\n\r\n" + bytes(100), b"TRTENSOR" + bytes(200), b"x"],
    ids=["garbage", "oversize", "http", "right magic", "too short"],
)
def test_garbage_is_refused_and_logged_once(words: bytes) -> None:
    with serving(TENSORS) as (_, port, log):
        for _ in range(3):
            with socket.create_connection(("127.0.0.1", port)) as sock:
                try:
                    sock.sendall(words)
                    sock.shutdown(socket.SHUT_WR)
                except OSError:
                    # Closed before everything was said.
                    pass
                said = until_closed(sock)
            # Greeting and refusal at most.
            assert len(said) <= 75
        right_peer_is_served(port)
    assert len({text for text in log if "introduction" not in text}) <= 1
    assert len(log) == len(set(log))
    assert log


def test_silent_and_slow_clients_are_dropped_and_do_not_keep_the_right_one_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(donor_module, "_HELLO_DEADLINE_S", 0.5)
    with serving(TENSORS) as (_, port, log):
        silent = [socket.create_connection(("127.0.0.1", port)) for _ in range(100)]
        slow = socket.create_connection(("127.0.0.1", port))
        for sock in [*silent, slow]:
            sock.settimeout(60)
            with contextlib.suppress(ConnectionResetError):  # it had to make room
                sock.recv(42)
        monkeypatch.setattr(donor_module, "_HELLO_DEADLINE_S", 60.0)  # for whoever comes from here on
        stop = threading.Event()

        def trickle() -> None:
            try:
                while not stop.wait(0.05):
                    slow.send(b"T")
            except OSError:
                pass

        thread = threading.Thread(target=trickle)
        thread.start()
        right_peer_is_served(port)
        for sock in [*silent, slow]:
            until_closed(sock)
        stop.set()
        thread.join()
        for sock in [*silent, slow]:
            sock.close()
    assert log
    assert len(log) == len(set(log))


def test_of_too_many_silent_clients_the_oldest_make_room(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(donor_module, "_HELLO_DEADLINE_S", 50.0)
    with serving(TENSORS) as (_, port, _log):
        silent = [socket.create_connection(("127.0.0.1", port), timeout=60) for _ in range(6)]
        assert [len(sock.recv(42, socket.MSG_WAITALL)) for sock in silent] == [42] * 6, "greeted"
        silent += [socket.create_connection(("127.0.0.1", port)) for _ in range(64)]
        # And then closed long before the time for an introduction is over.
        assert [until_closed(sock) for sock in silent[:6]] == [b""] * 6
        right_peer_is_served(port)
        silent[-1].settimeout(30)
        assert len(silent[-1].recv(42, socket.MSG_WAITALL)) == 42
        silent[-1].settimeout(0.0)
        with pytest.raises(BlockingIOError):
            silent[-1].recv(1)
        for sock in silent:
            sock.close()


def test_a_peer_at_another_address_is_not_even_greeted() -> None:
    with serving(TENSORS, peer_host="192.0.2.1") as (_, port, log):
        for _ in range(3):
            with socket.create_connection(("127.0.0.1", port)) as sock:
                assert until_closed(sock) == b""
        with pytest.raises(ChannelClosedError):
            take(port, blank(TENSORS))
    assert log == ["tensor channel: 127.0.0.1 turned away: not the address of the peer that was named"]


def admitted(port: int) -> Channel:
    channel = connect("127.0.0.1", port, time.monotonic() + 30)
    handshake.introduce(channel, GENERATION, TOKEN, 0)
    return channel


@pytest.mark.parametrize(
    "words", [struct.pack("!II", 99, 0), struct.pack("!II", requests.CHUNK, 10**6)], ids=["kind", "chunk"]
)
def test_nonsense_from_an_admitted_peer_ends_its_connection_only(words: bytes) -> None:
    with serving(TENSORS) as (_, port, log):
        channel = admitted(port)
        channel.send(words)
        with pytest.raises(ChannelClosedError):
            channel.receive(1)
        channel.close()
        right_peer_is_served(port)
    assert len(log) == 1


def test_a_recorded_introduction_cannot_be_used_again() -> None:
    said = bytearray()

    class Recording(Channel):
        def send(self, data: bytes | memoryview) -> None:
            said.extend(data)
            super().send(data)

    with serving(TENSORS) as (_, port, log):
        recording = Recording(socket.create_connection(("127.0.0.1", port)), time.monotonic() + 30)
        handshake.introduce(recording, GENERATION, TOKEN, 0)
        recording.close()
        assert TOKEN.encode() not in said
        with socket.create_connection(("127.0.0.1", port)) as sock:
            sock.sendall(said)
            assert len(until_closed(sock)) == 75
        assert any("wrong token" in text for text in log)


def answering(answer: Callable[[socket.socket], None]) -> tuple[socket.socket, threading.Thread]:
    listener = socket.create_server(("127.0.0.1", 0))

    def serve() -> None:
        try:
            while True:
                sock, _ = listener.accept()
                with sock:
                    answer(sock)
        except OSError:
            pass

    thread = threading.Thread(target=serve)
    thread.start()
    return listener, thread


def impostor(sock: socket.socket) -> None:
    sock.sendall(struct.pack("!8sH32s", b"TRTENSOR", 3, bytes(32)))
    sock.recv(1000)
    sock.sendall(bytes(33))


@pytest.mark.parametrize(
    ("answer", "error", "text"),
    [
        (impostor, RefusedError, "does not hold the token"),
        (lambda sock: sock.sendall(b"HTTP/1.1 400 Bad Request\r\n" + bytes(100)), RefusedError, "no donor"),
        (lambda sock: sock.sendall(b"220 smtp\r\n"), ChannelClosedError, "closed"),
    ],
    ids=["impostor", "http", "short"],
)
def test_a_receiver_takes_nothing_from_whoever_is_not_the_donor(
    answer: Callable[[socket.socket], None], error: type[TorchrelayError], text: str
) -> None:
    listener, thread = answering(answer)
    placed: list[object] = []
    with pytest.raises(error, match=text):
        take(listener.getsockname()[1], {}, place=placed.append)
    assert placed == []
    listener.shutdown(socket.SHUT_RDWR)
    thread.join()
    listener.close()


@pytest.mark.parametrize("size", [1 << 60, (256 << 20) + 1])
def test_an_oversize_manifest_is_refused_before_any_memory_is_taken(size: int, monkeypatch: pytest.MonkeyPatch) -> None:
    def announce(channel: Channel, kind: int, number: int, length: int) -> None:
        channel.send(struct.pack("!IIQ", kind, number, size))

    monkeypatch.setattr(requests, "announce", announce)
    with serving(TENSORS) as (_, port, _log), pytest.raises(FrameError, match="does not fit"):
        take(port, blank(TENSORS))
