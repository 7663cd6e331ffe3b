"""What the command does around its agent."""

from __future__ import annotations

import asyncio
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

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
