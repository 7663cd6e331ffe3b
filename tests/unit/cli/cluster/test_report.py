"""What `kubectl torchrelay report` and `stop` say, by a job's resources."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from support.http_api import HttpApi

from torchrelay.cli.cluster import commands
from torchrelay.cli.cluster.api import Cluster
from torchrelay.cli.cluster.report import report_of
from torchrelay.cli.history.cost import Assumed
from torchrelay.cli.history.report import ReportForm, facts
from torchrelay.protocol.errors import UserError

Object = dict[str, Any]
ASSUMED = Assumed(1800.0, 300.0)
RANKS = [{"rank": r, "pod": f"llama-{r // 2}", "node": "n", "worker": f"llama-{r // 2}:a.{r}"} for r in range(4)]


def job(owner: str = "PyTorchJob/llama", **status: Any) -> Object:
    meta = {"name": "llama", "namespace": "team", "creationTimestamp": "2026-01-01T10:00:00Z"}
    known = {"worldSize": 4, "step": 900, "ranks": RANKS, "finishedAt": "2026-01-01T11:00:00Z"}
    return {"metadata": meta, "spec": {"owner": owner}, "status": {**known, "protection": "protected", **status}}


def move(name: str, kind: str, outcome: str, seconds: float = 2.0) -> Object:
    status = {"kind": kind, "outcome": outcome, "downtimeSeconds": seconds, "stepsRedone": 1, "reason": "it was killed"}
    meta = {"name": name, "namespace": "team"}
    return {
        "metadata": meta,
        "spec": {"job": "llama"},
        "status": {**status, "startedAt": f"2026-01-01T10:0{name[-1]}:00Z"},
    }


MOVES = [
    move("m2", "planned", "committed", 0.5),
    move("m1", "unplanned", "committed"),
    move("m3", "unplanned", "abandoned", 0.0),
]
POOL = {"metadata": {"name": "llama", "namespace": "team"}, "spec": {"job": "llama", "spares": 1}}


def test_what_the_resources_say_is_counted() -> None:
    loss = {
        "rank": 0,
        "step": 70,
        "at": "2026-01-01T10:30:00Z",
        "rung": "checkpoint",
        "seconds": 97.5,
        "stepsRedone": 20,
    }
    told = report_of(job(losses=[loss, {**loss, "rung": "next-spare"}]), MOVES, POOL, 0.0, ASSUMED)
    assert (told.run_id, told.ranks, told.steps, told.wall_s) == ("team/llama", 4, 900, 3600.0)
    assert [f.name for f in told.faults] == ["m1", "m2", "m3", "restart at step 70"]
    assert (told.losses_survived, told.moves_done, told.standstill_s) == (1, 1, 2.5)
    assert told.lost_device_h == pytest.approx(4 * 100 / 3600)
    assert told.spare_device_h == 2.0  # a pod of two processes, for an hour
    assert told.restart_device_h == pytest.approx(4 * 2 * 1200 / 3600)
    assert told.not_protected == ()


def test_useful_time_and_that_of_steps_that_were_done_again_are_those_of_the_resource() -> None:
    told = report_of(job(usefulSeconds=2700.0, redoneSeconds=36.0), MOVES, None, 0.0, ASSUMED)
    assert (told.goodput, told.redone_s) == (0.75, 36.0)
    assert told.lost_device_h == pytest.approx(4 * (2.5 + 36.0) / 3600)


def test_what_they_do_not_say_is_said_to_be_missing() -> None:
    told = report_of(job(), MOVES, None, 0.0, ASSUMED)
    assert (told.goodput, told.redone_s) == (None, None)
    said = dict(facts(told))
    assert said["goodput"].startswith("not known: the controller that led this job is too old")
    assert said["lost to them"].endswith("3 steps done again, whose time is not known and not counted")


def test_a_job_that_goes_on_counts_until_now_and_says_what_is_not_protected() -> None:
    began_s = 1767261600.0
    running = job(finishedAt="", protection="partly", protectionReason="no rank of pipeline stage 1 has a replica")
    told = report_of(running, [], None, began_s + 60, ASSUMED)
    assert told.wall_s == 60.0
    assert told.not_protected == ("no rank of pipeline stage 1 has a replica",)


def asked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, found: Object, ask: Callable[[Cluster], Awaitable[int]]
) -> int:
    async def run() -> int:
        api = HttpApi()
        api.put("trainingjobs", found)
        for migration in MOVES:
            api.put("migrations", migration)
        api.put("sparepools", POOL)
        async with api.served(tmp_path) as config:
            monkeypatch.setenv("KUBECONFIG", str(config))
            async with Cluster("team") as cluster:
                return await asyncio.wait_for(ask(cluster), 20)

    return asyncio.run(run())


def test_the_report_is_that_of_a_run_on_a_machine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    ask = lambda form: lambda c: commands.report(c, "llama", ASSUMED, form)  # noqa: E731 - one for each form
    assert asked(tmp_path, monkeypatch, job(), ask(ReportForm.JSON)) == 0
    told = json.loads(capsys.readouterr().out)
    assert (told["losses_survived"], told["goodput"], told["faults"][0]["name"]) == (1, None, "m1")
    asked(tmp_path, monkeypatch, job(), ask(ReportForm.TEXT))
    assert "losses survived: 1; planned moves: 1" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("owner", "command"),
    [
        ("PyTorchJob/llama", "kubectl delete pytorchjob llama -n team"),
        ("Pod/llama-0", "kubectl delete pods -l torchrelay.dev/job=llama -n team"),
        ("", "kubectl delete pods -l torchrelay.dev/job=llama -n team"),
    ],
)
def test_who_wants_to_stop_a_job_is_told_what_to_delete(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, owner: str, command: str
) -> None:
    with pytest.raises(UserError) as told:
        asked(tmp_path, monkeypatch, job(owner, finishedAt=""), lambda c: commands.stop(c, "llama"))
    assert str(told.value).endswith(f"hint: {command}")


def test_a_job_that_has_ended_needs_no_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert asked(tmp_path, monkeypatch, job(), lambda c: commands.stop(c, "llama")) == 0
    assert "has ended already, at 2026-01-01T11:00:00Z" in capsys.readouterr().err


def test_a_checkpoint_that_was_saved_is_the_basis_of_the_losses_after_it() -> None:
    saved = move("m0", "save", "saved", 0.4)
    saved["status"]["finishedAt"] = "2026-01-01T10:00:30Z"
    told = report_of(job(), [saved, *MOVES], POOL, 0.0, ASSUMED)
    assert told.counted_from_saved == 2
    assert told.restart_device_h == pytest.approx(4 * (30 + 90 + 2 * 300) / 3600)
