"""`kubectl torchrelay events`, with an API server over HTTP in this process."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from support.http_api import HttpApi

from torchrelay.cli.cluster.api import Cluster
from torchrelay.cli.cluster.events import show_events
from torchrelay.protocol.errors import UserError

Object = dict[str, Any]


def tell(api: HttpApi, number: int, reason: str, kind: str = "TrainingJob", about: str = "llama", at: int = 10) -> None:
    event = {
        "metadata": {"name": f"e{number}", "namespace": "team"},
        "involvedObject": {"kind": kind, "name": about},
        "type": "Warning" if reason == "MigrationStarted" else "Normal",
        "reason": reason,
        "message": f"message {number}",
        "lastTimestamp": f"2026-01-01T10:00:{at:02}Z",
    }
    api.put("events", event)


@pytest.fixture
def api() -> HttpApi:
    api = HttpApi()
    api.put("trainingjobs", {"metadata": {"name": "llama", "namespace": "team"}, "spec": {}, "status": {}})
    for name, job in (("llama-1", "llama"), ("other-1", "other")):
        api.put("migrations", {"metadata": {"name": name, "namespace": "team"}, "spec": {"job": job}})
    return api


def shown(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    api: HttpApi,
    meanwhile: Callable[[], Awaitable[None]] | None = None,
    job: str = "llama",
    as_json: bool = False,
) -> int:
    async def run() -> int:
        async with api.served(tmp_path) as config:
            monkeypatch.setenv("KUBECONFIG", str(config))
            async with Cluster("team") as cluster:
                asking = asyncio.ensure_future(show_events(cluster, job, meanwhile is not None, as_json))
                if meanwhile is not None:
                    await meanwhile()
                return await asyncio.wait_for(asking, 20)

    return asyncio.run(run())


def messages(text: str) -> list[str]:
    return [line.split("message ")[1] for line in text.splitlines()]


def test_the_jobs_own_are_told_in_their_order_with_what_was_decided_in_its_migrations(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, api: HttpApi, capsys: pytest.CaptureFixture[str]
) -> None:
    tell(api, 3, "MigrationStarted", at=30)
    tell(api, 1, "Armed", at=10)
    tell(api, 2, "Protected", at=10)
    tell(api, 9, "MigrationStarted", "Migration", "llama-1", at=30)  # the job is told it, too
    tell(api, 4, "Decision", "Migration", "llama-1", at=31)
    tell(api, 8, "Decision", "Migration", "other-1", at=31)
    tell(api, 7, "Protected", about="other")
    assert shown(tmp_path, monkeypatch, api) == 0
    out = capsys.readouterr().out
    assert messages(out) == ["1", "2", "3", "4"]
    assert out.splitlines()[2].endswith("00:30 MigrationStarted: message 3")


def test_as_json_they_are_the_resources(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, api: HttpApi, capsys: pytest.CaptureFixture[str]
) -> None:
    tell(api, 1, "Armed")
    shown(tmp_path, monkeypatch, api, as_json=True)
    (line,) = capsys.readouterr().out.splitlines()
    assert json.loads(line) == api.of("events").objects["team", "e1"]


def test_follow_tells_each_once_until_the_job_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, api: HttpApi, capsys: pytest.CaptureFixture[str]
) -> None:
    tell(api, 1, "Armed")

    async def meanwhile() -> None:
        await api.wait_for_watch("events")
        tell(api, 2, "Protected", at=11)
        tell(api, 3, "JobFinished", about="other", at=12)
        tell(api, 4, "JobFinished", at=13)

    assert shown(tmp_path, monkeypatch, api, meanwhile) == 0
    assert messages(capsys.readouterr().out) == ["1", "2", "4"]


def test_of_a_job_that_is_over_there_is_nothing_to_follow(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, api: HttpApi, capsys: pytest.CaptureFixture[str]
) -> None:
    api.of("trainingjobs").objects["team", "llama"]["status"]["finishedAt"] = "2026-01-01T10:00:00Z"

    async def meanwhile() -> None:
        pass

    assert shown(tmp_path, monkeypatch, api, meanwhile) == 0
    out = capsys.readouterr().out
    assert "no event of llama is kept: Kubernetes forgets them" in out
    assert "hint: kubectl torchrelay history llama -n team" in out


def test_a_job_that_is_not_there_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, api: HttpApi) -> None:
    with pytest.raises(UserError, match="there is no job lama in namespace team"):
        shown(tmp_path, monkeypatch, api, job="lama")
