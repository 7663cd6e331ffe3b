"""What the command does around its agent."""

from __future__ import annotations

import asyncio
import signal
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from torchrelay.cli.display.summary import MigrationSummary, RestartSummary, RunSummary
from torchrelay.cli.folders.folder import read_run
from torchrelay.cli.folders.journals import journal_folder
from torchrelay.cli.run import local_job
from torchrelay.cli.run.local_job import LocalJob


def test_what_an_agent_that_was_killed_has_left_is_gone_before_the_next_one_is_started(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ranks that begin anew could go back to copies of those before, and take their journals for their own."""
    monkeypatch.setattr("torchrelay.cli.folders.journals.MEMORY", tmp_path)
    left = journal_folder("ab12", tmp_path) / "kept-n0"
    left.mkdir(parents=True)
    seen: list[list[Path]] = []

    async def start(*_: Any, **__: Any) -> None:
        seen.append(list(left.parent.iterdir()))

    monkeypatch.setattr(local_job.CommandChild, "start", start)
    job = SimpleNamespace(_folder=tmp_path / "ab12", _agent_config=tmp_path / "agent.json")
    asyncio.run(LocalJob._prepare_agent(job))  # type: ignore[arg-type]  # it stands for one
    assert seen == [[]]


def test_a_way_that_was_taken_is_written_down_for_status_at_once(tmp_path: Path) -> None:
    moved = MigrationSummary("m1", "unplanned", (1,), outcome="committed", spares=("n0.r0",), steps_redone=1)
    summary = RunSummary(migrations=(moved,), restarts=(RestartSummary(1, "script", "", -1, 3, "lost"),))
    job = SimpleNamespace(
        _control=object(),
        _controller=None,
        _agent=None,
        _run_id="ab",
        _folder=tmp_path,
        _address=("127.0.0.1", 1),
        _command=("torchrelay", "run"),
        _options=SimpleNamespace(name="llama"),
        _started_s=1.0,
        follower=SimpleNamespace(summary=summary),
    )
    job._write_entry = lambda: LocalJob._write_entry(job)  # type: ignore[arg-type]  # it stands for one
    LocalJob.rungs_changed(job)  # type: ignore[arg-type]  # as above
    run = read_run(tmp_path)
    assert run is not None
    assert [(r.rung, r.times, r.steps) for r in run.rungs] == [("respawn", 1, 1), ("script", 1, 3)]
    assert run.restarts == ("1 (script): from the script's beginning, 3 steps lost: lost",)


@pytest.mark.parametrize(
    ("signals", "after_s", "killed"),
    [
        ((signal.SIGTERM, signal.SIGTERM), 0.01, False),  # as `timeout` does: to the command, and to its group
        ((signal.SIGTERM, signal.SIGTERM), 5.0, True),
        ((signal.SIGINT, signal.SIGINT), 0.01, False),  # as `timeout -s INT` does
        ((signal.SIGINT, signal.SIGINT), 0.3, True),  # a person at a keyboard
        ((signal.SIGTERM, signal.SIGINT), 0.01, True),
    ],
)
def test_a_signal_that_comes_twice_at_once_is_meant_once(
    signals: tuple[int, int], after_s: float, killed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    now_s = 100.0
    done: list[str] = []

    async def stop(number: int) -> None:
        done.append("stop")

    async def receive() -> None:
        nonlocal now_s
        for number in signals:
            LocalJob._on_signal(job, number)  # type: ignore[arg-type]  # it stands for one
            now_s += after_s
        await asyncio.gather(*job._stops)

    monkeypatch.setattr(local_job, "time", SimpleNamespace(monotonic=lambda: now_s))
    agent = SimpleNamespace(kill=lambda: done.append("kill"))
    job = SimpleNamespace(_agent=agent, stopped_by=0, _stopped_s=0.0, _stops=set(), _stop=stop)
    asyncio.run(receive())
    assert sorted(done) == (["kill", "stop"] if killed else ["stop"])
