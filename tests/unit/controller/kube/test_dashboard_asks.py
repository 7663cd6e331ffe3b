"""What people ask for on the dashboard of a cluster reaches their job, with their names, and only where tokens are given out."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx2
import pytest
from support.kube_world import World, in_world
from support.ports import free_port

from torchrelay.controller.kube.client.api import QUARANTINES
from torchrelay.controller.kube.dashboard_asks import READ_ONLY, DashboardAsks
from torchrelay.controller.kube.event_feed import EventFeed, feed_served
from torchrelay.dashboard.cluster.__main__ import Settings, serve
from torchrelay.dashboard.cluster.asks import CUT, LATE, NOBODY, ControllerAsks
from torchrelay.protocol.errors import FrameError
from torchrelay.protocol.kube.dashboard_asks import AskToClear, AskToMove, pack_ask, parse_ask
from torchrelay.protocol.messages import ClearReply, ClearRequest, MigrateReply

ALICE, BOB = "alices-token-is-long-enough", "bobs-token-is-long-enough"
MOVE = AskToMove(1, "team", "llama", 1, "the fan is loud", "alice")
CLEAR = AskToClear(1, "team", "llama", "GPU-1", "repaired", "alice")


class Page:
    """What a browser sends to the dashboard."""

    def __init__(self, port: int, client: httpx2.AsyncClient) -> None:
        self.address, self._client = f"http://127.0.0.1:{port}", client

    async def settings(self) -> dict[str, Any]:
        return dict((await self._client.get(f"{self.address}/api/settings")).json())

    async def ask(self, what: str, token: str, **asked: Any) -> httpx2.Response:
        headers = {"origin": self.address, "authorization": f"Bearer {token}"}
        return await self._client.post(f"{self.address}/api/runs/team.llama/{what}", json=asked, headers=headers)


@contextlib.asynccontextmanager
async def shown(w: World, folder: Path, takes_asks: bool = True, tokens: Path | None = None) -> AsyncIterator[Page]:
    """Controller and dashboard as in their pod, until the page knows the job."""
    path, port = str(folder / "events.sock"), free_port()
    feed = EventFeed("c-1", lambda: "c-1")
    feed.lead(w.ledger, DashboardAsks(w.api, w.ledger).answer if takes_asks else None)  # type: ignore[arg-type]  # a stand-in
    async with feed_served(path, feed), httpx2.AsyncClient(timeout=20.0, trust_env=False) as client:
        serving = asyncio.ensure_future(serve(Settings(path, port, tokens=tokens)))
        page = Page(port, client)
        try:
            for _ in range(600):  # the page has no way to tell
                if await _knows_the_job(client, page.address):
                    break
                await asyncio.sleep(0.05)
            yield page
        finally:
            serving.cancel()
            await asyncio.wait((serving,))


async def _knows_the_job(client: httpx2.AsyncClient, address: str) -> bool:
    with contextlib.suppress(httpx2.HTTPError):
        return bool((await client.get(f"{address}/api/runs")).json())
    return False


@pytest.fixture
def people(tmp_path: Path) -> Path:
    """A Secret as the kubelet mounts it."""
    folder = tmp_path / "tokens"
    (folder / "..2026").mkdir(parents=True)
    (folder / "..data").symlink_to("..2026")
    for name, token in (("alice", ALICE), ("bob", BOB + "\n")):
        (folder / "..2026" / name).write_text(token)
        (folder / name).symlink_to(f"..data/{name}")
    return folder


def test_who_has_a_token_moves_a_rank_and_the_job_is_told_whose_it_was(
    tmp_path: Path, people: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def test(w: World) -> None:
        asked: list[tuple[int, str, str]] = []

        def migrate(rank: int, reason: str, by: str) -> MigrateReply:
            asked.append((rank, reason, by))
            return MigrateReply(
                rank == 1, "m1" if rank == 1 else "", "" if rank == 1 else "there is no spare to move it to"
            )

        w.run.migrate = migrate  # type: ignore[method-assign]
        async with shown(w, tmp_path, tokens=people) as page:
            assert (await page.settings())["actions"]
            done = await page.ask("migrate", BOB, rank=1, reason="the fan is loud")
            assert (done.status_code, done.json()) == (200, {"done": True, "message": "migration m1 is under way"})
            refused = await page.ask("migrate", ALICE, rank=0, reason="so")
            assert refused.json() == {"done": False, "message": "there is no spare to move it to"}
        assert asked == [(1, "the fan is loud", "bob, on the dashboard"), (0, "so", "alice, on the dashboard")]

    with caplog.at_level(logging.INFO):
        in_world(test)
    assert "team/llama: bob asks on the dashboard to move rank 1: the fan is loud" in caplog.messages
    assert ALICE not in caplog.text
    assert BOB not in caplog.text


def test_a_token_that_is_taken_out_of_the_secret_is_of_no_use_any_more(tmp_path: Path, people: Path) -> None:
    async def test(w: World) -> None:
        async with shown(w, tmp_path, tokens=people) as page:
            assert (await page.ask("migrate", ALICE, rank=1, reason="so")).status_code == 200
            (people / "alice").unlink()
            assert (await page.ask("migrate", ALICE, rank=1, reason="so")).status_code == 401
            assert (await page.ask("migrate", "-", rank=1, reason="so")).status_code == 401
            (people / "bob").unlink()
            assert (await page.ask("migrate", "-", rank=1, reason="so")).status_code == 403
            assert not (await page.settings())["actions"]

    in_world(test)


def test_without_tokens_it_is_read_only(tmp_path: Path) -> None:
    async def test(w: World) -> None:
        async with shown(w, tmp_path, takes_asks=False) as page:
            assert not (await page.settings())["actions"]
            assert (await page.ask("migrate", ALICE, rank=1, reason="so")).status_code == 403

    in_world(test)


def test_a_controller_that_was_started_without_tokens_believes_no_dashboard(tmp_path: Path, people: Path) -> None:
    async def test(w: World) -> None:
        async with shown(w, tmp_path, takes_asks=False, tokens=people) as page:
            answer = await page.ask("migrate", ALICE, rank=1, reason="so")
            assert answer.json() == {"done": False, "message": READ_ONLY}

    in_world(test)


def quarantine(name: str, node: str, device: str = "") -> dict[str, Any]:
    spec = {"node": node, "reason": "gone", **({"device": device} if device else {})}
    return {"metadata": {"name": name}, "spec": spec}


def test_a_quarantine_of_the_cluster_is_cleared_in_its_resource_and_one_of_a_job_by_the_job(
    tmp_path: Path, people: Path
) -> None:
    async def test(w: World) -> None:
        of_job: list[ClearRequest] = []

        def clear(request: ClearRequest) -> ClearReply:
            of_job.append(request)
            return ClearReply(True, False, f"{request.subject} may be used again")

        w.run.relay.clear = clear  # type: ignore[method-assign]
        for manifest in (quarantine("n1", "n1"), quarantine("n1-gpu", "n1", "GPU-1")):
            await w.api.create(QUARANTINES, manifest)
            w.ledger.quarantine_changed(manifest, False)
        async with shown(w, tmp_path, tokens=people) as page:
            done = await page.ask("clear", ALICE, subject="GPU-1", reason="repaired")
            assert done.json() == {"done": True, "message": "GPU-1 may be used again"}
            assert of_job == []
            assert (await page.ask("clear", ALICE, subject="GPU-2", reason="was reset")).json()["done"]
        cleared = {name: w.api.objects[QUARANTINES.name, "", name]["spec"].get("cleared") for name in ("n1", "n1-gpu")}
        assert cleared == {"n1": None, "n1-gpu": "repaired (asked for by alice, on the dashboard)"}
        assert [(r.subject, r.reason, r.by) for r in of_job] == [("GPU-2", "was reset", "alice, on the dashboard")]

    in_world(test)


def test_a_node_that_a_job_has_put_aside_is_cleared_by_the_name_that_the_page_has_for_it() -> None:
    async def test(w: World) -> None:
        w.run.core.job.machines["agent-1"] = "n1"
        w.run.core.job.quarantine["agent-1"] = "gone"
        found: list[str] = []
        w.run.relay.clear = lambda r: ClearReply(bool(found.append(r.subject)), False, "")  # type: ignore[method-assign, func-returns-value]
        asks = DashboardAsks(w.api, w.ledger)  # type: ignore[arg-type]  # a stand-in
        await asks.answer(AskToClear(1, "team", "llama", "n1", "so", "alice"))
        assert found == ["agent-1"]

    in_world(test)


def test_an_ask_about_a_job_that_is_gone_and_a_fault_at_one_job_are_answered() -> None:
    async def test(w: World) -> None:
        asks = DashboardAsks(w.api, w.ledger)  # type: ignore[arg-type]  # a stand-in
        gone = await asks.answer(AskToMove(7, "team", "other", 1, "so", "alice"))
        assert (gone.number, gone.done, gone.message) == (7, False, "there is no job team/other that runs")

        def fails(*_: object) -> MigrateReply:
            raise ValueError("a bug")

        w.run.migrate = fails  # type: ignore[method-assign]
        failed = await asks.answer(MOVE)
        assert (failed.done, failed.message) == (False, "torchrelay has failed at it: ValueError: a bug")
        assert "a bug" in w.run.failure

    in_world(test)


def test_an_ask_that_nobody_answers_is_given_up_and_says_that_it_may_be_done() -> None:
    class Writer:
        def write(self, _: bytes) -> None: ...

    async def test() -> None:
        asks = ControllerAsks(answer_s=0.05)
        assert (await asks.ask(lambda n: MOVE)).message == NOBODY
        asks.connected(Writer())  # type: ignore[arg-type]
        assert (await asks.ask(lambda n: MOVE)).message == LATE
        waiting = asyncio.ensure_future(ControllerAsks.ask(patient := ControllerAsks(), lambda n: MOVE))
        patient.connected(Writer())  # type: ignore[arg-type]
        await asyncio.sleep(0)
        patient.cut()
        assert (await waiting).message == CUT

    asyncio.run(test())


def test_asks_arrive_as_they_were_sent() -> None:
    for ask in (MOVE, CLEAR):
        assert parse_ask(pack_ask(ask)) == ask


@pytest.mark.parametrize(
    "text",
    [
        b"[]",
        b"no json",
        b'{"kind": "AskToStop"}',
        pack_ask(MOVE).replace(b'"rank": 1', b'"rank": true'),
        pack_ask(MOVE).replace(b'"rank": 1', b'"rank": -1'),
        pack_ask(MOVE).replace(b'"by": "alice"', b'"by": ""'),
        pack_ask(CLEAR).replace(b'"GPU-1"', b'["GPU-1"]'),
        pack_ask(CLEAR).replace(b'"by"', b'"from"'),
    ],
)
def test_what_makes_no_sense_is_not_taken_for_an_ask(text: bytes) -> None:
    with pytest.raises(FrameError):
        parse_ask(text)
