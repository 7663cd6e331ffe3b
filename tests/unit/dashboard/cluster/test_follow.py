"""How the dashboard listens to the controller beside it, and serves what it hears."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import threading
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import httpx2
import pytest
from support.ports import free_port

from torchrelay.dashboard.cluster import __main__ as main_module
from torchrelay.dashboard.cluster import follow as module
from torchrelay.dashboard.cluster.__main__ import Settings, serve
from torchrelay.dashboard.cluster.follow import follow
from torchrelay.dashboard.cluster.jobs import ClusterJobs
from torchrelay.dashboard.cluster.kept import KeptJobs
from torchrelay.protocol.errors import UserError
from torchrelay.protocol.kube import job_feed as f
from torchrelay.protocol.kube import kube_names as kube
from torchrelay.protocol.names import ENV_HISTORY_DIR

LEADS = f.FeedLeader("c-1", "c-1")
SEEN = f.JobSeen("team", "llama", "a", "Job/llama", False)


class Feed:
    """A controller that says what a test has it say to each listener, and then waits or hangs up."""

    def __init__(self, *says: bytes, hangs_up: bool = False) -> None:
        self.says, self.hangs_up, self.heard = says, hangs_up, 0

    async def tell(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.heard += 1
        for text in self.says:
            writer.write(text)
            await writer.drain()
        if not self.hangs_up:
            await reader.read()
        writer.close()


async def until(holds: Callable[[], object]) -> None:
    """The dashboard has no way to tell that it has heard something, but to show it."""
    for _ in range(6000):
        if holds():
            return
        await asyncio.sleep(0.01)
    raise AssertionError("it did not come within 60 s")


@contextlib.asynccontextmanager
async def following(path: Path, feed: Feed, kept: KeptJobs | None = None) -> AsyncIterator[ClusterJobs]:
    server = await asyncio.start_unix_server(feed.tell, path)
    jobs = ClusterJobs(60.0, kept=kept)
    task = asyncio.ensure_future(follow(jobs, str(path)))
    try:
        yield jobs
        assert not task.done()
    finally:
        task.cancel()
        server.close()
        await asyncio.wait([task])


def is_open(port: int) -> bool:
    with socket.socket() as trying:
        return trying.connect_ex(("127.0.0.1", port)) == 0


def test_lines_are_taken_however_they_are_cut(tmp_path: Path) -> None:
    text = b"".join(map(f.pack, (LEADS, SEEN)))

    async def test() -> None:
        async with following(tmp_path / "s", Feed(text[:7], text[7:60], text[60:])) as jobs:
            await until(lambda: jobs.hub.find("team.llama"))
            assert jobs.problem == ""
            assert jobs.leading == LEADS

    asyncio.run(test())


def test_what_is_kept_is_looked_through_beside_the_loop_and_before_the_first_job(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    looked_in: list[threading.Thread] = []
    look = KeptJobs.list_again
    monkeypatch.setattr(KeptJobs, "list_again", lambda kept: (looked_in.append(threading.current_thread()), look(kept)))

    async def test() -> None:
        kept = KeptJobs(tmp_path / "history", 64 << 20)
        async with following(tmp_path / "s", Feed(f.pack(LEADS) + f.pack(SEEN)), kept) as jobs:
            await until(lambda: jobs.hub.find("team.llama"))
        kept.close()

    asyncio.run(test())
    assert len(looked_in) == 1
    assert looked_in[0] is not threading.main_thread()


def test_a_line_that_is_not_understood_is_left_out(tmp_path: Path) -> None:
    async def test() -> None:
        async with following(tmp_path / "s", Feed(b"{}\n\xff\n", f.pack(LEADS), f.pack(SEEN))) as jobs:
            await until(lambda: jobs.hub.find("team.llama"))

    asyncio.run(test())


def test_a_line_without_an_end_does_not_take_the_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "LONGEST_LINE_BYTES", 1 << 20)

    async def test() -> None:
        async with following(tmp_path / "s", Feed(*[b"x" * (1 << 18)] * 6)) as jobs:
            await until(lambda: "a line of more than 1 MiB" in jobs.problem)

    asyncio.run(test())


def test_the_feed_comes_again_after_it_was_cut_off(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "AGAIN_S", 0.01)

    async def test() -> None:
        feed = Feed(f.pack(LEADS), f.pack(SEEN), hangs_up=True)
        async with following(tmp_path / "s", feed) as jobs:
            await until(lambda: feed.heard > 2)
            await until(lambda: jobs.problem == "the controller beside this dashboard has ended")
            assert jobs.hub.find("team.llama") is not None
            feed.hangs_up = False
            await until(lambda: jobs.problem == "")

    asyncio.run(test())


def test_a_controller_that_says_nothing_is_not_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "SILENT_S", 0.05)

    async def test() -> None:
        async with following(tmp_path / "s", Feed(f.pack(LEADS))) as jobs:
            await until(lambda: "has said nothing for" in jobs.problem)

    asyncio.run(test())


def test_one_that_is_not_there_is_said(tmp_path: Path) -> None:
    async def test() -> None:
        jobs = ClusterJobs(60.0)
        task = asyncio.ensure_future(follow(jobs, str(tmp_path / "none")))
        await until(lambda: "does not answer" in jobs.problem)
        task.cancel()
        await asyncio.wait([task])

    asyncio.run(test())


def test_the_dashboard_serves_its_page_on_loopback_alone_and_does_nothing_for_anybody(tmp_path: Path) -> None:
    async def test() -> None:
        feed, port = Feed(f.pack(LEADS), f.pack(SEEN)), free_port()
        server = await asyncio.start_unix_server(feed.tell, tmp_path / "s")
        serving = asyncio.ensure_future(serve(Settings(str(tmp_path / "s"), port)))
        own = {"origin": f"http://localhost:{port}"}
        async with server, httpx2.AsyncClient(base_url=f"http://localhost:{port}", trust_env=False) as client:
            await until(lambda: serving.done() or is_open(port))
            assert (await client.get("/api/settings")).json() == {"actions": False, "noun": "job"}
            assert (await client.get("/")).status_code == 200
            asked = await client.post("/api/runs/team.llama/migrate", json={"rank": 0, "reason": "so"}, headers=own)
            assert asked.status_code == 403
            foreign = await client.get("/api/settings", headers={"host": "evil.example"})
            assert foreign.status_code == 421
            serving.cancel()
            await asyncio.wait([serving], timeout=10)
            server.close()

    assert main_module.LOOPBACK == "127.0.0.1"
    asyncio.run(test())


def test_settings_are_those_of_the_controllers_chart() -> None:
    found = Settings.from_environ({kube.ENV_DASHBOARD_SOCKET: "/s", kube.ENV_TTL_AFTER_FINISHED_S: "-1"})
    assert found == Settings("/s", kube.DASHBOARD_PORT, -1.0)
    assert Settings.from_environ({}) == Settings(kube.DASHBOARD_SOCKET)
    assert Settings.from_environ({}).kept is None
    kept = Settings.from_environ({ENV_HISTORY_DIR: "/h", kube.ENV_HISTORY_BYTES: "1048576"})
    assert (kept.history, kept.history_bytes) == (Path("/h"), 1 << 20)
    for name in (kube.ENV_TTL_AFTER_FINISHED_S, kube.ENV_HISTORY_BYTES):
        with pytest.raises(UserError, match=f"{name} is a number"):
            Settings.from_environ({name: "long"})


def test_a_port_that_is_taken_is_said(tmp_path: Path) -> None:
    async def test() -> None:
        server = await asyncio.start_server(lambda *_: None, "127.0.0.1", 0)
        async with server:
            port = server.sockets[0].getsockname()[1]
            with pytest.raises(UserError, match=f"cannot listen on 127.0.0.1:{port}"):
                await serve(Settings(str(tmp_path / "s"), port))

    asyncio.run(test())
