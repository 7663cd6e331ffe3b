"""Which run `report` and `explain` are about, and what is known of it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from support.kept_runs import head, progress, write

from torchrelay.cli.folders import folder
from torchrelay.cli.history import find
from torchrelay.protocol import events
from torchrelay.protocol.messages import JobEvent

BEGAN = events.to_job_event(events.JobStarted("ab", 2, 1, ("n0",)), 10.0)


class LateControl:
    """Tells what a controller keeps: no steps but the newest."""

    async def watch(self, without_progress: bool, follow: bool) -> AsyncIterator[JobEvent]:
        for event in (BEGAN, progress(110.0, 180)):
            yield event


@pytest.mark.parametrize(("is_kept", "share"), [(True, 0.9), (False, 0.0)])
def test_a_run_that_goes_on_is_known_from_what_is_kept_of_it_and_what_was_told_since(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_kept: bool, share: float
) -> None:
    @asynccontextmanager
    async def controller_of(*_: Any) -> AsyncIterator[tuple[SimpleNamespace, LateControl]]:
        yield SimpleNamespace(run_id="ab"), LateControl()

    monkeypatch.setattr(find, "controller_of", controller_of)
    monkeypatch.setattr(folder, "one_of_each", lambda state: [SimpleNamespace(run_id="ab", name="pretrain")])
    if is_kept:
        write(tmp_path / "history", [BEGAN, progress(20.0, 0), progress(60.0, 80), progress(100.0, 160)], head("ab"))
    environment = {"TORCHRELAY_HISTORY_DIR": str(tmp_path / "history"), "TORCHRELAY_STATE_DIR": str(tmp_path / "state")}
    record = asyncio.run(find.find_record(environment, None))
    assert record.boundary == 180
    assert record.useful_time(110.0).share == pytest.approx(share)
