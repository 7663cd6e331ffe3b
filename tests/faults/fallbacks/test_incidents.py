"""A migration that fails although it was promised is kept with what is needed to find the cause, and nothing of the script's."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from support.cells import few
from support.relay_run import relay

SCRIPT, RANKS = "rehearsed.py", 2
PROMISE = {"AWAIT": '"level": "protected"'}


@pytest.mark.core
@pytest.mark.slow
@pytest.mark.parametrize(
    "options",
    few(1, [pytest.param(("--incident-journals",), id="with journals"), pytest.param((), id="alone")]),
)
def test_a_promise_that_is_not_kept_is_an_incident(options: tuple[str, ...], tmp_path: Path) -> None:
    temporary = tmp_path / "tmp"
    temporary.mkdir()
    run = relay(
        tmp_path,
        SCRIPT,
        "breaks",
        ranks=RANKS,
        spares=2,
        inject=["kill:rank=1,step=8,phase=backward"],
        options=["--rehearse-every=0", *options],
        environment={**PROMISE, "TMPDIR": str(temporary)},
    )
    assert run.status == 75, run.told()
    assert list(temporary.glob("torchrelay-*")) == [], "what a process has left that was to take over"
    (incident,) = run.named("incident")
    folder = Path(incident["directory"])
    assert folder.parent == tmp_path / "torchrelay-incidents"
    assert (incident["migration"], incident["level"]) == ("m1", "protected")
    assert "this machine has changed" in incident["reason"]
    (line,) = [text for text in run.stderr.splitlines() if "a promise was not kept" in text]
    assert str(folder) in line
    assert run.stderr.count("no spare is spent on rank 1") == 1, "at the end; as it is decided, it is a detail"
    record = json.loads((folder / "incident.json").read_text())
    assert record["promised"]["level"] == "protected"
    assert record["joins_that_failed"][0]["reason"].endswith("this machine has changed")
    assert record["versions"]["torch"]
    assert any(record["journals"]["1"])
    report = json.loads((folder / "report.json").read_text())
    assert (report["level"], report["gaps"]) == ("protected", [])
    told = [json.loads(text)["name"] for text in (folder / "events.jsonl").read_text().splitlines()]
    assert {"protection", "migration_started", "decision", "migration_finished"} <= set(told)
    assert bool(list(folder.glob("rank-*"))) == bool(options), "journals hold what the script's variables hold"
    assert [p.name for p in (folder, *folder.iterdir()) if p.stat().st_mode & 0o077] == []
    assert "rank 1 (n0.w1) was killed" in run.named("job_finished")[0]["reason"]
