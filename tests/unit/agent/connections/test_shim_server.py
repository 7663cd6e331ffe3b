"""The unix socket to the training processes: who belongs gets in, everyone else is turned away and named once."""

from __future__ import annotations

import asyncio
import logging
import os
import resource
import socket
import stat
from collections.abc import Awaitable, Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from torchrelay.agent.connections import shim_server
from torchrelay.agent.connections.shim_server import ShimEvents, ShimServer
from torchrelay.protocol.errors import UserError
from torchrelay.protocol.messages import Ack, Commit, Hello, Warm
from torchrelay.protocol.names import MAX_FRAME_BYTES, WorkerId
from torchrelay.protocol.transport import wire

W0, W1 = WorkerId("n0.w0"), WorkerId("n0.w1")
TOKENS = {W0: "token of w0", W1: "token of w1"}
TIMEOUT_S = 20.0


class Scene:
    """A listening server, and what it was told."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "run" / "agent.sock"
        self.hellos: list[Hello] = []
        self.reports: list[tuple[str, Any]] = []
        self.changed = asyncio.Event()
        self.server = ShimServer(self.path, TOKENS, ShimEvents(self._connected, self._reported))

    def _connected(self, worker: WorkerId, hello: Hello) -> None:
        self.hellos.append(hello)

    def _reported(self, worker: WorkerId, report: Any) -> None:
        self.reports.append((worker, report))
        self.changed.set()

    async def until(self, count: int) -> None:
        while len(self.reports) < count:
            self.changed.clear()
            await asyncio.wait_for(self.changed.wait(), TIMEOUT_S)

    async def connect(self) -> Peer:
        return Peer(*await asyncio.open_unix_connection(str(self.path)))

    async def member(self, worker: WorkerId = W0) -> Peer:
        peer = await self.connect()
        peer.send(hello(worker))
        assert isinstance(await peer.receive(), Ack)
        return peer


class Peer:
    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer

    def send(self, *messages: Any) -> None:
        self.writer.write(b"".join(map(wire.encode, messages)))

    async def receive(self) -> Any:
        head = await asyncio.wait_for(self.reader.readexactly(wire.HEAD_BYTES), TIMEOUT_S)
        return wire.decode(await self.reader.readexactly(wire.frame_length(head)), wire.ORDERS)

    async def is_refused(self) -> bool:
        """Whether the server closes the connection without a word."""
        try:
            return await asyncio.wait_for(self.reader.read(), TIMEOUT_S) == b""
        except ConnectionError:
            return True

    async def close(self) -> None:
        self.writer.close()
        with suppress(ConnectionError):
            await self.writer.wait_closed()


def hello(worker: str, token: str | None = None) -> Hello:
    return Hello(worker, TOKENS.get(WorkerId(worker), "") if token is None else token, 1, "3.11", False)


def play(folder: Path, act: Callable[[Scene], Awaitable[None]]) -> None:
    async def scenario() -> None:
        scene = Scene(folder)
        scene.server.start()
        try:
            await act(scene)
        finally:
            scene.server.close()

    asyncio.run(scenario())


def test_the_socket_is_for_its_user_alone(tmp_path: Path) -> None:
    async def act(scene: Scene) -> None:
        assert stat.S_IMODE(scene.path.stat().st_mode) == 0o600
        assert stat.S_IMODE(scene.path.parent.stat().st_mode) == 0o700

    play(tmp_path, act)


def test_a_folder_that_others_may_enter_is_refused(tmp_path: Path) -> None:
    (tmp_path / "run").mkdir(mode=0o755)
    (tmp_path / "run").chmod(0o755)
    with pytest.raises(UserError, match="chmod 700"):
        play(tmp_path, lambda _scene: asyncio.sleep(0))


def test_a_connection_that_fails_at_once_does_not_stop_the_server(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shim_server, "ACCEPT_PAUSE_S", 0.01)

    async def act(scene: Scene) -> None:
        listener = scene.server._listener
        assert listener is not None
        limits = resource.getrlimit(resource.RLIMIT_NOFILE)
        connecting = socket.socket(socket.AF_UNIX)
        resource.setrlimit(resource.RLIMIT_NOFILE, (0, limits[1]))
        try:
            connecting.connect(str(scene.path))
            scene.server._accept()
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, limits)
        assert any("failed at once" in reason for reason in scene.server._named)
        peer = Peer(*await asyncio.open_unix_connection(sock=connecting))
        peer.send(hello(W0))
        assert isinstance(await peer.receive(), Ack)
        await peer.close()

    play(tmp_path, act)


def test_a_name_that_no_socket_can_have_is_a_clear_error(tmp_path: Path) -> None:
    server = ShimServer(tmp_path / ("x" * 120), {}, ShimEvents(lambda *_: None, lambda *_: None))
    with pytest.raises(UserError, match="cannot listen"):
        server.start()


def test_a_folder_with_a_long_path_is_listened_in(tmp_path: Path) -> None:
    folder = tmp_path / ("x" * 120)
    folder.mkdir(mode=0o700)

    async def start() -> None:
        server = ShimServer(folder / "agent.sock", {}, ShimEvents(lambda *_: None, lambda *_: None))
        server.start()
        assert (folder / "agent.sock").is_socket()
        server.close()
        assert not (folder / "agent.sock").exists()

    asyncio.run(start())


def test_reports_arrive_in_order_however_the_bytes_are_cut(tmp_path: Path) -> None:
    async def act(scene: Scene) -> None:
        peer = await scene.member()
        data = b"".join(wire.encode(Warm(str(i) * i)) for i in range(60))
        for start in range(0, len(data), 7):
            peer.writer.write(data[start : start + 7])
            await peer.writer.drain()
        await scene.until(60)
        assert scene.reports == [(W0, Warm(str(i) * i)) for i in range(60)]
        await peer.close()

    play(tmp_path, act)


def test_hello_is_passed_on_with_the_kernels_pid_and_without_the_token(tmp_path: Path) -> None:
    async def act(scene: Scene) -> None:
        peer = await scene.member()
        assert scene.hellos == [Hello(W0, "", os.getpid(), "3.11", False)]
        await peer.close()

    play(tmp_path, act)


def test_orders_wait_for_their_worker_and_come_after_the_acknowledgement(tmp_path: Path) -> None:
    async def act(scene: Scene) -> None:
        scene.server.send(W0, Commit(1))
        scene.server.send(W0, Commit(2))
        peer = await scene.member()
        scene.server.send(W0, Commit(3))
        assert [await peer.receive() for _ in range(3)] == [Commit(1), Commit(2), Commit(3)]
        await peer.close()

    play(tmp_path, act)


BAD_BEGINNINGS = {
    "garbage": b"\x00\x00\x00\x04\xff\xff\xff\xff",
    "no frame at all": b"GET / HTTP/1.1\r\n\r\n",
    "a frame larger than any": (MAX_FRAME_BYTES + 1).to_bytes(4, "big"),
    "a first frame larger than a Hello": (100 << 10).to_bytes(4, "big"),
    "a report before Hello": wire.encode(Warm("2.13")),
    "a wrong token": wire.encode(hello(W0, "guessed")),
    "an empty token": wire.encode(hello(W0, "")),
    "the token of another worker": wire.encode(hello(W0, TOKENS[W1])),
    "a token that is no text": wire.encode(hello(W0, "\udcff")),
    "an unknown worker": wire.encode(hello("n7.w0", "")),
}


@pytest.mark.parametrize("data", BAD_BEGINNINGS.values(), ids=BAD_BEGINNINGS.keys())
def test_a_stranger_is_refused_and_named_once_and_the_worker_still_gets_in(
    tmp_path: Path, data: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    async def act(scene: Scene) -> None:
        for _ in range(3):
            stranger = await scene.connect()
            stranger.writer.write(data)
            assert await stranger.is_refused()
            await stranger.close()
        worker = await scene.member()
        worker.send(Warm("2.13"))
        await scene.until(1)
        assert scene.reports == [(W0, Warm("2.13"))]
        await worker.close()

    with caplog.at_level(logging.WARNING):
        play(tmp_path, act)
    assert len([r for r in caplog.records if "refused" in r.getMessage()]) == 1


def test_a_second_connection_of_a_worker_is_refused_and_the_first_goes_on(tmp_path: Path) -> None:
    async def act(scene: Scene) -> None:
        first, second = await scene.member(), await scene.connect()
        second.send(hello(W0))
        assert await second.is_refused()
        first.send(Warm("still here"))
        await scene.until(1)
        scene.server.send(W0, Commit(1))
        assert await first.receive() == Commit(1)
        await first.close()
        await second.close()

    play(tmp_path, act)


def test_a_worker_may_connect_again_after_it_has_hung_up(tmp_path: Path) -> None:
    async def act(scene: Scene) -> None:
        first = await scene.member()
        first.send(Warm("1"))
        await first.close()
        await scene.until(1)
        again = await scene.connect()
        again.send(hello(W0), Warm("2"))
        await scene.until(2)
        await again.close()

    play(tmp_path, act)


@pytest.mark.parametrize("data", [b"\x00\x00\x00\x02{]", b"\xff\xff\xff\xff", wire.encode(hello(W0))])
def test_a_worker_that_talks_garbage_is_cut_off_and_the_others_go_on(tmp_path: Path, data: bytes) -> None:
    async def act(scene: Scene) -> None:
        bad, good = await scene.member(W0), await scene.member(W1)
        bad.writer.write(data)
        assert await bad.is_refused()
        good.send(Warm("good"))
        await scene.until(1)
        assert scene.reports == [(W1, Warm("good"))]
        await bad.close()
        await good.close()

    play(tmp_path, act)


def test_who_says_no_hello_is_cut_off(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shim_server, "HELLO_TIMEOUT_S", 0.05)

    async def act(scene: Scene) -> None:
        silent = await scene.connect()
        assert await silent.is_refused()
        await silent.close()

    play(tmp_path, act)


def test_too_many_strangers_at_once_are_turned_away(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shim_server, "MAX_STRANGERS", 2)

    async def act(scene: Scene) -> None:
        strangers = [await scene.connect() for _ in range(3)]
        assert await strangers[2].is_refused()
        strangers[0].send(hello(W0))
        assert isinstance(await strangers[0].receive(), Ack)
        for stranger in strangers:
            await stranger.close()

    play(tmp_path, act)


def test_another_user_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shim_server, "_peer", lambda _sock: (1, os.getuid() + 1, 1))

    async def act(scene: Scene) -> None:
        stranger = await scene.connect()
        stranger.send(hello(W0))
        assert await stranger.is_refused()
        await stranger.close()

    play(tmp_path, act)


def test_what_a_dead_worker_had_written_is_still_read_though_its_child_holds_the_socket(tmp_path: Path) -> None:
    async def act(scene: Scene) -> None:
        held = socket.socket(socket.AF_UNIX)
        held.connect(str(scene.path))
        held.sendall(wire.encode(hello(W0)))
        peer = Peer(*await asyncio.open_unix_connection(sock=held.dup()))
        assert isinstance(await peer.receive(), Ack)
        held.sendall(b"".join(wire.encode(Warm(str(i))) for i in range(1000)))
        scene.server.drain(W0)
        assert [r.torch_version for _, r in scene.reports] == [str(i) for i in range(1000)]
        held.close()
        await peer.close()

    play(tmp_path, act)


def test_a_worker_that_does_not_read_holds_up_no_one(tmp_path: Path) -> None:
    async def act(scene: Scene) -> None:
        deaf, good = await scene.member(W0), await scene.member(W1)
        deaf.writer.transport.pause_reading()  # type: ignore[attr-defined]  # a socket's
        for generation in range(20_000):
            scene.server.send(W0, Commit(generation))
        scene.server.send(W1, Commit(1))
        assert await good.receive() == Commit(1)
        deaf.writer.transport.resume_reading()  # type: ignore[attr-defined]  # a socket's
        assert [(await deaf.receive()).generation for _ in range(20_000)] == list(range(20_000))
        await deaf.close()
        await good.close()

    play(tmp_path, act)
