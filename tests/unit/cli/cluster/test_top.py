"""What `kubectl torchrelay top` shows of a cluster's resources."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from rich.console import Console

from torchrelay.cli.cluster import top as module
from torchrelay.cli.cluster import view
from torchrelay.cli.cluster.top import StepRates, top
from torchrelay.protocol.errors import UserError

Object = dict[str, Any]


def job(name: str = "llama", step: int = 7, **status: Any) -> Object:
    known = {"phase": "Running", "worldSize": 2, "step": step, "spares": 1, "sparesWarm": 1, "protection": "protected"}
    return {"metadata": {"name": name, "namespace": "team"}, "spec": {}, "status": {**known, **status}}


def text_of(jobs: list[Object], migrations: list[Object], rates: StepRates, everywhere: bool = False) -> list[str]:
    console = Console(width=160, record=True, file=open("/dev/null", "w"))  # noqa: SIM115 - the console's own
    with console.file:
        console.print(view.top_view(jobs, migrations, rates.per_s, everywhere))
        return console.export_text().splitlines()


def test_the_rate_is_what_was_seen_and_none_before_that() -> None:
    rates = StepRates()
    rates.take([job(step=10)], 100.0)
    assert rates.per_s(job(step=10)) is None
    rates.take([job(step=10)], 105.0)
    assert rates.per_s(job(step=10)) is None
    rates.take([job(step=40)], 110.0)
    assert rates.per_s(job(step=40)) == 3.0
    assert rates.per_s(job(step=40, phase="Migrating")) is None
    assert rates.per_s(job("other")) is None


def test_a_job_that_goes_back_is_watched_anew_and_old_looks_are_dropped() -> None:
    rates = StepRates()
    for n in range(10):
        rates.take([job(step=10 * n)], 30.0 * n)
    assert rates.per_s(job(step=90)) == pytest.approx(1 / 3)
    assert len(rates._seen["team", "llama"]) <= 4
    rates.take([job(step=50)], 400.0)
    assert rates.per_s(job(step=50)) is None
    rates.take([], 401.0)
    assert rates._seen == {}


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
    lines = text_of(jobs, moves, StepRates(), everywhere=True)
    assert [line.split()[:2] for line in lines[1:3]] == [["team", "llama"], ["team", "zebra"]]
    assert "2 (1 lost)" in lines[2]
    assert "no spare" in lines[2]
    shown = [line.split()[0] for line in lines if line.startswith("m") and line.split()[0] != "migration"]
    assert shown == ["m4", "m5", "m6", "m7", "m8"]
    assert "kubectl torchrelay dashboard" in lines[-1]


def test_without_a_job_it_says_what_it_waits_for() -> None:
    assert text_of([], [], StepRates())[0] == "no job here is torchrelay's; this shows the next one that is"


def test_it_needs_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module.sys.stdin, "isatty", lambda: False, raising=False)
    with pytest.raises(UserError, match="hint: kubectl torchrelay status --watch"):
        asyncio.run(top(None, None, False))  # type: ignore[arg-type]  # it is not asked
