"""On real connections over the loopback device."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Callable, Iterator

import pytest

from torchrelay.shim.adapters.process_groups import tcp

End = tuple[socket.socket, socket.socket]
LONG_S = 30.0


def connect(host: str = "127.0.0.1", family: socket.AddressFamily = socket.AF_INET) -> End:
    with socket.create_server((host, 0), family=family) as listener:
        one = socket.create_connection(listener.getsockname()[:2])
        other, _ = listener.accept()
    return one, other


@pytest.fixture
def pair() -> Iterator[End]:
    one, other = connect()
    with one, other:
        yield one, other


def until(done: Callable[[], bool]) -> None:
    end_s = time.monotonic() + LONG_S
    while not done():
        assert time.monotonic() < end_s, "it did not happen"
        time.sleep(0.05)


def reading(connection: socket.socket) -> tcp.Reading:
    found = tcp.read(connection.fileno())
    assert found is not None
    return found


def test_what_is_sent_to_a_dead_end_is_overdue_and_breaks_nothing(pair: End) -> None:
    one, other = pair
    tcp.drop_all(other.fileno())
    started_s = time.monotonic()
    one.sendall(b"x")
    until(lambda: reading(one).retransmits >= 3)
    seen = reading(one)
    assert seen.is_overdue
    assert 0.5 < seen.retried_s <= time.monotonic() - started_s
    assert seen.silent_s >= seen.retried_s
    other.setblocking(False)
    with pytest.raises(BlockingIOError):
        other.recv(1)


def test_what_a_dead_end_sends_still_leaves_it(pair: End) -> None:
    one, other = pair
    tcp.drop_all(other.fileno())
    other.sendall(b"x")
    one.settimeout(LONG_S)
    assert one.recv(1) == b"x"
    until(lambda: reading(other).is_overdue)


def test_an_idle_peer_is_probed_and_both_ends_find_out(pair: End) -> None:
    one, other = pair
    tcp.drop_all(other.fileno())
    before = [tcp.keep_alive(end.fileno()) for end in pair]
    until(lambda: reading(one).is_overdue and reading(other).is_overdue)
    assert reading(one).silent_s > 1.0
    for end, settings in zip(pair, before):
        assert end.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE) == 1
        tcp.put_back(end.fileno(), settings)
        assert end.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE) == 0
        assert end.getsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE) == settings[0] > 1


def test_an_idle_peer_that_lives_answers_for_its_process(pair: End) -> None:
    one, _ = pair
    tcp.keep_alive(one.fileno())
    until(lambda: reading(one).silent_s > 0.9)
    until(lambda: reading(one).silent_s < 0.5)
    assert not reading(one).is_overdue


def test_a_peer_that_does_not_read_still_answers(pair: End) -> None:
    """As a stopped process does: its kernel says that there is no room, again and again."""
    one, _ = pair
    one.settimeout(1.0)
    with pytest.raises(TimeoutError):
        one.sendall(b"x" * 50_000_000)
    end_s = time.monotonic() + 3.0
    while time.monotonic() < end_s:
        assert not reading(one).is_overdue
        time.sleep(0.05)


def test_only_connections_are_found() -> None:
    one, other = connect()
    left, right = socket.socketpair()
    with one, other, left, right, socket.create_server(("127.0.0.1", 0)) as listener, socket.socket() as fresh:
        wanted = {os.readlink(f"/proc/self/fd/{s.fileno()}") for s in (one, other, left, right, listener, fresh)}
        with tcp.connections(wanted) as found:
            assert set(found) == {os.readlink(f"/proc/self/fd/{s.fileno()}") for s in (one, other)}
            descriptors = list(found.values())
            assert {tcp.ends(fd) for fd in descriptors} == {tcp.ends(one.fileno()), tcp.ends(other.fileno())}
        with tcp.connections() as found:
            assert os.readlink(f"/proc/self/fd/{one.fileno()}") in found
    for fd in descriptors:
        with pytest.raises(OSError, match="Bad file descriptor"):
            os.fstat(fd)


def test_looking_leaves_a_blocking_connection_blocking(pair: End) -> None:
    one, _ = pair
    socket.setdefaulttimeout(1.0)
    try:
        with tcp.connections() as found:
            for fd in found.values():
                tcp.read(fd)
        assert os.get_blocking(one.fileno())
    finally:
        socket.setdefaulttimeout(None)


def test_both_ends_name_each_other_alike(pair: End) -> None:
    one, other = pair
    local, remote = tcp.ends(one.fileno())
    assert (remote, local) == tcp.ends(other.fileno())
    assert local == "{}:{}".format(*one.getsockname())


@pytest.mark.skipif(not socket.has_ipv6, reason="no IPv6 here")
def test_addresses_of_both_kinds_of_ip_are_named_alike() -> None:
    try:
        listener = socket.create_server(("::", 0), family=socket.AF_INET6, dualstack_ipv6=True)
    except OSError:
        pytest.skip("no IPv6 here")
    with listener:
        port = listener.getsockname()[1]
        for host, name in (("127.0.0.1", f"127.0.0.1:{port}"), ("::1", f"[::1]:{port}")):
            one = socket.create_connection((host, port))
            other, _ = listener.accept()
            with one, other:
                assert tcp.ends(one.fileno())[1] == name == tcp.ends(other.fileno())[0]
                assert tcp.ends(one.fileno()) == tuple(reversed(tcp.ends(other.fileno())))


def test_a_connection_that_is_over_has_nothing_to_tell(pair: End) -> None:
    one, other = pair
    other.close()
    until(lambda: tcp.read(one.fileno()) is None)
