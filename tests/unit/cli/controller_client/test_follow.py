"""What the command asks the controller to tell it."""

from __future__ import annotations

import asyncio
import io
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any

import pytest
from support.kept_runs import head

from torchrelay.cli.controller_client.follow import JobFollower
from torchrelay.cli.display.teller import Teller
from torchrelay.cli.folders.history import kept_runs
from torchrelay.cli.folders.kept_run import RunWriter
from torchrelay.protocol import events
from torchrelay.protocol.messages import JobEvent


class FakeControl:
    async def watch(self, without_progress: bool) -> AsyncGenerator[JobEvent, None]:
        self.without_progress = without_progress
        yield events.to_job_event(events.JobFinished(0, "done"), 1.0)


class FakeTeller(Teller):
    is_live = False


@pytest.mark.parametrize("writes_events", [False, True])
@pytest.mark.parametrize("is_live", [False, True])
def test_progress_is_asked_for_where_somebody_looks(
    writes_events: bool, is_live: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(FakeTeller, "is_live", is_live)
    control: Any = FakeControl()
    with JobFollower(FakeTeller(io.StringIO(), {}, True), tmp_path / "e.jsonl" if writes_events else None) as follower:
        asyncio.run(follower.follow(control))
    assert control.without_progress == (not writes_events and not is_live)
    assert follower.summary.exit_code == 0


@pytest.mark.parametrize("heard", [False, True])
def test_the_end_of_a_run_is_written_down_once_whoever_knows_it(heard: bool, tmp_path: Path) -> None:
    """A controller that was ended with all the others has told nothing."""
    kept = RunWriter(tmp_path / "history", head("ab"), pytest.fail)
    with JobFollower(FakeTeller(io.StringIO(), {}, True), tmp_path / "e.jsonl", kept) as follower:
        if heard:
            follower.take(events.to_job_event(events.JobFinished(143, "stopped by SIGTERM", "alice"), 1.0))
        follower.ended(143, "stopped by SIGTERM")
    (run,) = kept_runs(tmp_path / "history")
    by = " (asked for by alice)" if heard else ""
    assert run.end(run.record()) == (143, f"exit code 143: stopped by SIGTERM{by}")
    for file in (run.events, tmp_path / "e.jsonl"):
        assert file.read_text().count("job_finished") == 1
