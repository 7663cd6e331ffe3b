"""`kubectl torchrelay history --kept`, with a kubectl that leads to a dashboard of a few jobs."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest
from support.http_api import HttpApi
from support.stand_in_kubectl import Kubectl, leads, serving
from typer.main import get_command

from torchrelay.cli.cluster.api import Cluster
from torchrelay.cli.cluster.app import app
from torchrelay.cli.cluster.kept_jobs import show_kept
from torchrelay.dashboard.cluster.jobs import PAST_SHOWN
from torchrelay.protocol.errors import UserError
from torchrelay.protocol.kube import kube_names as kube

CARD = {
    "run": "team.llama",
    "job": "team/llama",
    "ranks": 4,
    "steps": 60,
    "goodput": "97 %",
    "protection": "protected",
    "headline": "Finished",
    "when": "",
    "over": False,
}
OVER = {**CARD, "run": "team.gpt.0a1b", "job": "team/gpt", "when": "began 2026-11-20 10:00 UTC", "over": True}


@pytest.fixture
def api() -> HttpApi:
    return HttpApi()


def asked(api: HttpApi, folder: Path, monkeypatch: pytest.MonkeyPatch, job: str | None, as_json: bool = False) -> int:
    async def run() -> int:
        async with api.served(folder) as config:
            monkeypatch.setenv("KUBECONFIG", str(config))
            monkeypatch.setenv("COLUMNS", "160")
            async with Cluster(kube.SYSTEM_NAMESPACE) as cluster:
                return await show_kept(cluster, job, "", as_json)

    return asyncio.run(run())


@pytest.mark.parametrize(
    ("job", "shown"), [(None, ["team/llama", "team/gpt"]), ("gpt", ["team/gpt"]), ("team/llama", ["team/llama"])]
)
def test_jobs_that_are_over_are_listed_beside_those_that_train(
    job: str | None,
    shown: list[str],
    api: HttpApi,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    kubectl = Kubectl(tmp_path, monkeypatch, serving({"/api/runs": [CARD, OVER]}))
    leads(api, "c-1")
    assert asked(api, tmp_path, monkeypatch, job) == 0
    told = capsys.readouterr()
    rows = told.out.splitlines()[1:]
    assert [row.split()[0] for row in rows] == shown
    assert ("2026-11-20 10:00 UTC" in told.out) is ("team/gpt" in shown)
    assert ("trains" in told.out) is ("team/llama" in shown)
    assert kubectl.forwarded()[0][0] == "pod/c-1"
    assert asked(api, tmp_path, monkeypatch, job, as_json=True) == 0
    assert [json.loads(line)["job"] for line in capsys.readouterr().out.splitlines()] == shown


def test_where_nothing_is_kept_that_is_said(
    api: HttpApi, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    Kubectl(tmp_path, monkeypatch, serving({"/api/runs": [CARD]}))
    leads(api, "c-1")
    assert asked(api, tmp_path, monkeypatch, "other") == 0
    assert capsys.readouterr().out == "nothing is kept of a job other\n"


def test_a_dashboard_without_a_list_is_said(api: HttpApi, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    Kubectl(tmp_path, monkeypatch, serving({}))
    leads(api, "c-1")
    with pytest.raises(UserError, match="serves no dashboard"):
        asked(api, tmp_path, monkeypatch, None)


def test_help_says_how_many_that_are_over_are_listed() -> None:
    parameters = {parameter.name: parameter for parameter in get_command(app).commands["history"].params}  # type: ignore[attr-defined]  # of a group
    assert f"the newest {PAST_SHOWN} that are over" in parameters["kept"].help  # type: ignore[attr-defined]  # of an option
