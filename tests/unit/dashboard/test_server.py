"""Who may ask a dashboard for what, and what it answers."""

from __future__ import annotations

import asyncio
import json
import re
from pathlib import Path

import pytest
from starlette.testclient import TestClient
from support import told_runs as t

from torchrelay.cli.commands.dashboard import FileRun, read_token, silence
from torchrelay.dashboard import server
from torchrelay.dashboard.event_lines import EventLines
from torchrelay.dashboard.hub import Answer, Hub
from torchrelay.dashboard.tokens import one_token
from torchrelay.dashboard.view import Seen
from torchrelay.protocol.errors import UserError

TOKEN = "t0ken-of-more-than-16-letters"
URL = "http://localhost:8471"
OWN = {"origin": URL, "authorization": f"Bearer {TOKEN}"}


class FakeRun:
    """Notes what it is asked for."""

    def __init__(self) -> None:
        self.record = t.record_of(t.small_run())
        self.asked: list[tuple[object, ...]] = []

    def seen(self) -> Seen:
        return Seen(self.record, t.BEGAN_S + 140, "run train.py", actions=True)

    async def migrate(self, rank: int, reason: str, by: str) -> Answer:
        self.asked.append((rank, reason))
        return Answer(True, "migration m3 is under way")

    async def clear(self, subject: str, reason: str, check: bool, by: str) -> Answer:
        self.asked.append((subject, reason, check))
        return Answer(True, f"{subject} may be used again")


@pytest.fixture
def run() -> FakeRun:
    return FakeRun()


def client(run: FakeRun, token: str = TOKEN) -> TestClient:
    hub = Hub()
    hub.put("7e70abbe", run)
    return TestClient(server.make_app(hub, ("localhost", "127.0.0.1", "[::1]"), one_token(token)), base_url=URL)


def test_the_page_and_all_that_it_names_are_served(run: FakeRun) -> None:
    page = client(run).get("/")
    assert page.headers["content-type"] == "text/html; charset=utf-8"
    named = re.findall(r'(?:src|href)="([\w.]+)"', page.text)
    assert len(named) == 3
    for name in named:
        assert client(run).get(f"/{name}").status_code == 200
    for name in server.page_files():
        imports = re.findall(r'from "\./([\w.]+)"', client(run).get(f"/{name}").text)
        assert all(client(run).get(f"/{i}").status_code == 200 for i in imports)
    assert client(run).get("/server.py").status_code == 404
    assert client(run).get("/..%2fserver.py").status_code == 404


def test_a_program_is_told_the_list_of_runs_at_once(run: FakeRun) -> None:
    (card,) = client(run).get("/api/runs").json()
    assert (card["run"], card["job"], card["ranks"]) == ("7e70abbe", "", 4)


def test_a_stream_begins_with_a_section_and_when_to_come_again() -> None:
    """Some clients take a block without data for an event, and read its data."""
    streamed = server._Site(Hub(), server.NO_TOKENS)

    async def first_two() -> list[str]:
        blocks = streamed._changes(lambda: {"job": "1", "ranks": "2"})
        return [await anext(blocks), await anext(blocks)]

    assert asyncio.run(first_two()) == ["retry: 2000\nevent: job\ndata: 1\n\n", "event: ranks\ndata: 2\n\n"]


def test_the_page_names_nothing_elsewhere(run: FakeRun) -> None:
    for name, (content, _) in server.page_files().items():
        urls = re.findall(rb"https?://[^\"' )]+", content)
        assert [u for u in urls if u != b"http://www.w3.org/2000/svg"] == [], name


def test_every_answer_carries_a_policy_that_allows_own_files_alone(run: FakeRun) -> None:
    for path in ("/", "/style.css", "/api/settings", "/absent"):
        policy = client(run).get(path).headers["content-security-policy"]
        assert "default-src 'none'" in policy
        assert "unsafe" not in policy
        assert "frame-ancestors 'none'" in policy


@pytest.mark.parametrize("host", ["evil.example", "evil.example:8471", "localhost.evil.example", "", "10.0.0.1"])
def test_a_name_that_is_not_the_dashboards_is_refused(run: FakeRun, host: str) -> None:
    for path in ("/", "/api/settings", "/api/runs/7e70abbe/migrations/m1"):
        assert client(run).get(path, headers={"host": host}).status_code == 421


@pytest.mark.parametrize("host", ["localhost", "LOCALHOST:1", "127.0.0.1:8471", "[::1]:8471"])
def test_its_own_names_are_taken_with_any_port(run: FakeRun, host: str) -> None:
    assert client(run).get("/api/settings", headers={"host": host}).status_code == 200


def test_a_page_of_another_site_can_read_nothing(run: FakeRun) -> None:
    path = "/api/runs/7e70abbe/migrations/m1"
    assert client(run).get(path, headers={"origin": "http://evil.example"}).status_code == 403
    assert client(run).get(path, headers={"sec-fetch-site": "cross-site"}).status_code == 403
    assert client(run).get(path, headers={"origin": URL, "sec-fetch-site": "same-origin"}).status_code == 200
    followed = {"sec-fetch-site": "cross-site", "sec-fetch-mode": "navigate"}
    assert client(run).get("/", headers=followed).status_code == 200


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"authorization": f"Bearer {TOKEN}"}, 403),
        ({**OWN, "origin": "http://evil.example"}, 403),
        ({**OWN, "origin": "http://localhost:9999"}, 403),
        ({**OWN, "origin": "null"}, 403),
        ({**OWN, "sec-fetch-site": "cross-site"}, 403),
        ({"origin": URL}, 401),
        ({**OWN, "authorization": "Bearer wrong"}, 401),
        ({**OWN, "authorization": "Bearer "}, 401),
        ({**OWN, "authorization": "Bearer gr\u00fc\u00df"}, 401),
    ],
)
def test_only_its_own_page_with_the_token_can_ask_for_something(
    run: FakeRun, headers: dict[str, str], status: int
) -> None:
    encoded = {name: value.encode() for name, value in headers.items()}
    asked = {"rank": 1, "reason": "fan"}
    assert client(run).post("/api/runs/7e70abbe/migrate", json=asked, headers=encoded).status_code == status
    assert run.asked == []


def test_with_the_token_a_move_and_a_clear_can_be_asked_for(run: FakeRun) -> None:
    moved = client(run).post("/api/runs/7e70abbe/migrate", json={"rank": 1, "reason": "fan"}, headers=OWN)
    assert moved.json() == {"done": True, "message": "migration m3 is under way"}
    asked = {"subject": t.GPU, "reason": "repaired", "check": True}
    client(run).post("/api/runs/7e70abbe/clear", json=asked, headers=OWN)
    assert run.asked == [(1, "fan"), (t.GPU, "repaired", True)]


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"no json",
        b"[]",
        b"[" * 3000,
        b'{"rank": -1, "reason": "x"}',
        b'{"rank": true, "reason": "x"}',
        b'{"rank": 1}',
    ],
)
def test_what_makes_no_sense_is_not_passed_on(run: FakeRun, body: bytes) -> None:
    answer = client(run).post("/api/runs/7e70abbe/migrate", content=body, headers=OWN)
    assert answer.status_code == 400
    assert client(run).post("/api/runs/other/migrate", json={"rank": 1, "reason": "x"}, headers=OWN).status_code == 400
    assert run.asked == []


def test_a_body_without_end_is_not_read(run: FakeRun) -> None:
    body = json.dumps({"rank": 1, "reason": "x" * server.MAX_BODY_BYTES}).encode()
    assert client(run).post("/api/runs/7e70abbe/migrate", content=body, headers=OWN).status_code == 400


def test_without_a_token_it_is_read_only(run: FakeRun) -> None:
    quiet = client(run, token="")
    assert quiet.get("/api/settings").json() == {"actions": False, "noun": "run"}
    for given in ("Bearer ", "", f"Bearer {TOKEN}"):
        headers = {**OWN, "authorization": given}
        assert (
            quiet.post("/api/runs/7e70abbe/migrate", json={"rank": 1, "reason": "x"}, headers=headers).status_code
            == 403
        )
    assert run.asked == []


def test_a_token_file_is_made_once_and_for_its_owner_alone(tmp_path: Path) -> None:
    path = tmp_path / "token"
    token = read_token(path)
    assert len(token) >= 32
    assert path.stat().st_mode & 0o777 == 0o600
    assert read_token(path) == token
    path.chmod(0o640)
    with pytest.raises(UserError, match="chmod 600"):
        read_token(path)
    path.chmod(0o600)
    path.write_text("short")
    with pytest.raises(UserError, match="16 letters"):
        read_token(path)


def test_a_file_that_does_not_grow_any_more_is_no_live_run(tmp_path: Path) -> None:
    path = t.write(t.small_run(), tmp_path / "events.jsonl")
    lines = EventLines(path)
    record = lines.read_all()
    assert silence(record, record.newest_s + 60) == ""
    assert "the file ends before the run does, 5 min ago" in silence(record, record.newest_s + 300)
    record.steps_per_s = 0.01  # a step takes 100 s
    assert silence(record, record.newest_s + 300) == ""
    assert FileRun(lines).seen().actions is False
