from __future__ import annotations

import os
import socket
from collections.abc import Iterator

import pytest

from torchrelay.shim.adapters.process_groups import sockets


@pytest.fixture
def pair() -> Iterator[tuple[socket.socket, socket.socket, socket.socket]]:
    with socket.create_server(("127.0.0.1", 0)) as listener, socket.create_connection(listener.getsockname()) as one:
        other, _ = listener.accept()
        with other:
            yield listener, one, other


def inode(sock: socket.socket) -> str:
    return os.readlink(f"/proc/self/fd/{sock.fileno()}")


def test_both_ends_of_a_connection_see_its_end(pair: tuple[socket.socket, socket.socket, socket.socket]) -> None:
    _, one, other = pair
    other.settimeout(10)
    one.settimeout(10)
    assert sockets.shut_down({inode(one)}) == 1
    assert other.recv(1) == b""
    assert one.recv(1) == b""


def test_listeners_and_strangers_are_left_alone(pair: tuple[socket.socket, socket.socket, socket.socket]) -> None:
    listener, one, other = pair
    assert sockets.shut_down({inode(listener), "socket:[0]"}) == 0
    one.sendall(b"x")
    other.settimeout(10)
    assert other.recv(1) == b"x"
    with socket.create_connection(listener.getsockname()):
        listener.accept()[0].close()


def test_a_descriptor_that_is_another_connection_s_by_now_is_left_alone(
    pair: tuple[socket.socket, socket.socket, socket.socket], monkeypatch: pytest.MonkeyPatch
) -> None:
    _, one, other = pair
    monkeypatch.setattr(sockets, "tcp_sockets", lambda: {one.fileno(): "socket:[1]"})
    assert sockets.shut_down({"socket:[1]"}) == 0
    one.sendall(b"x")
    assert other.recv(1) == b"x"


def test_pipes_and_files_are_no_sockets() -> None:
    read, write = os.pipe()
    found = sockets.tcp_sockets()
    os.close(read)
    os.close(write)
    assert read not in found
    assert write not in found


def test_unix_sockets_are_not_shut_down() -> None:
    one, other = socket.socketpair()
    with one, other:
        assert sockets.shut_down({inode(one)}) == 0
        one.sendall(b"x")
        assert other.recv(1) == b"x"
