"""The agent ends when the training container has, though nothing of it was part of a job."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

import pytest

from torchrelay.agent.pod import bystanders
from torchrelay.agent.pod.bystanders import Bystanders


def process(proc: Path, pid: int, group: str) -> Path:
    file = proc / str(pid) / "cgroup"
    file.parent.mkdir(parents=True)
    file.write_text(group)
    return file


def test_the_last_process_of_the_container_counts_and_not_the_one_that_was_seen(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bystanders, "POLL_S", 0.01)
    monkeypatch.setattr(bystanders, "SOON_S", 0.1)
    seen, child = process(tmp_path, 70, "0::/pod/train"), process(tmp_path, 71, "0::/pod/train")
    process(tmp_path, 1, "0::/pod/pause")

    async def test() -> None:
        watched = Bystanders(restarts=False, proc=tmp_path)
        gone = asyncio.create_task(watched.gone())
        watched.add(0)
        await asyncio.sleep(0.2)
        assert not gone.done()  # there was none
        watched.add(70)
        seen.unlink()
        await asyncio.sleep(0.3)
        assert not gone.done()
        child.unlink()
        await asyncio.wait_for(gone, 60.0)

    asyncio.run(test())


def test_one_that_the_kubelet_may_start_again_is_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bystanders, "POLL_S", 0.01)
    monkeypatch.setattr(bystanders, "SOON_S", 0.01)
    file = process(tmp_path, 70, "0::/pod/train")

    async def test() -> None:
        watched = Bystanders(restarts=True, proc=tmp_path)
        watched.add(70)
        file.unlink()
        with pytest.raises(asyncio.TimeoutError):
            await asyncio.wait_for(watched.gone(), 0.3)

    asyncio.run(test())


def test_time_in_which_the_agent_did_not_run_says_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bystanders, "POLL_S", 0.01)
    monkeypatch.setattr(bystanders, "SOON_S", 0.1)
    process(tmp_path, 70, "0::/pod/train")

    async def test() -> None:
        watched = Bystanders(restarts=False, proc=tmp_path)
        watched.add(70)
        gone = asyncio.create_task(watched.gone())
        await asyncio.sleep(0)
        time.sleep(0.3)  # noqa: ASYNC251 - nothing runs meanwhile
        with pytest.raises(asyncio.TimeoutError):
            await asyncio.wait_for(gone, 0.2)

    asyncio.run(test())
