"""The agent's own failures."""

from __future__ import annotations

import asyncio
import logging

import pytest

from torchrelay.agent import background


def test_a_part_that_fails_is_told_and_begun_anew(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(background, "RESTART_S", 0.0)
    begun = 0

    async def work() -> None:
        nonlocal begun
        begun += 1
        if begun < 3:
            raise ZeroDivisionError("a bug")

    with caplog.at_level(logging.ERROR):
        asyncio.run(background.persistently(work))
    assert begun == 3
    assert [r.exc_info[0] for r in caplog.records if r.exc_info] == [ZeroDivisionError] * 2


def test_the_end_of_the_agent_ends_its_parts() -> None:
    async def scenario() -> None:
        begun, ended = asyncio.Event(), asyncio.Event()

        async def work() -> None:
            try:
                begun.set()
                await asyncio.Event().wait()
            finally:
                ended.set()

        task = asyncio.ensure_future(background.persistently(work))
        await asyncio.wait_for(begun.wait(), 10)
        task.cancel()
        await asyncio.wait_for(ended.wait(), 10)
        assert (await asyncio.wait((task,), timeout=10))[0] == {task}

    asyncio.run(scenario())
