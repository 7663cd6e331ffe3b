"""What `kubectl torchrelay top` shows of a cluster's resources."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from rich.console import Console

from torchrelay.cli.cluster import top as module
from torchrelay.cli.cluster import view
from torchrelay.cli.cluster.top import top
from torchrelay.protocol.errors import UserError

Object = dict[str, Any]
BEGAN, NOW_S = "2026-01-01T10:00:00Z", 1767261600.0 + 3600


def job(name: str = "llama", step: int = 7, **status: Any) -> Object:
    known = {"phase": "Running", "worldSize": 2, "step": step, "spares": 1, "sparesWarm": 1, "protection": "protected"}
    return {
        "metadata": {"name": name, "namespace": "team", "creationTimestamp": BEGAN},
        "spec": {},
        "status": {**known, **status},
    }


def text_of(jobs: list[Object], migrations: list[Object], everywhere: bool = False) -> list[str]:
    console = Console(width=160, record=True, file=open("/dev/null", "w"))  # noqa: SIM115 - the console's own
    with console.file:
        console.print(view.top_view(jobs, migrations, NOW_S, everywhere))
        return console.export_text().splitlines()


def test_a_job_says_its_rate_and_how_much_of_its_time_was_of_use() -> None:
    train = job(stepSeconds=0.25, usefulSeconds=2700.0)
    header, line = text_of([train], [])[:2]
    shown = line[header.index("steps/s") :].split()
    assert shown[:3] == ["4.0", "75.0", "%"]


def test_the_rate_of_what_stands_still_or_says_nothing_is_not_known() -> None:
    for told in (job(stepSeconds=0.25, phase="Migrating"), job(stepSeconds=0.0), job()):
        header, line = text_of([told], [])[:2]
        assert line[header.index("steps/s") :].split()[:2] == ["-", "-"]


def test_jobs_that_go_on_are_shown_with_who_does_not_train_and_the_latest_migrations() -> None:
    jobs = [
        job("zebra", rankStates={"running": 1, "lost": 1}, protection="unprotected", protectionReason="no spare"),
        job("llama"),
        job("over", finishedAt="2026-01-01T10:00:00Z"),
    ]
    moves = [
        {"metadata": {"name": f"m{n}"}, "spec": {"job": "llama"}, "status": {"startedAt": f"2026-01-01T10:{n:02}:00Z"}}
        for n in range(9)
    ]
    lines = text_of(jobs, moves, everywhere=True)
    assert [line.split()[:2] for line in lines[1:3]] == [["team", "llama"], ["team", "zebra"]]
    assert "2 (1 lost)" in lines[2]
    assert "no spare" in lines[2]
    shown = [line.split()[0] for line in lines if line.startswith("m") and line.split()[0] != "migration"]
    assert shown == ["m4", "m5", "m6", "m7", "m8"]
    assert "kubectl torchrelay dashboard" in lines[-1]


def test_without_a_job_it_says_what_it_waits_for() -> None:
    assert text_of([], [])[0] == "no job here is torchrelay's; this shows the next one that is"


def test_top_needs_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module.sys.stdin, "isatty", lambda: False, raising=False)
    with pytest.raises(UserError, match="hint: kubectl torchrelay status --watch"):
        asyncio.run(top(None, None, False))  # type: ignore[arg-type]  # it is not asked
