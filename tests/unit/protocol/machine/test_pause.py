"""A sleep that can be cut short."""

from __future__ import annotations

import asyncio

from torchrelay.protocol.machine.pause import Pause

FOR_EVER_S = 1e6


def test_a_pause_ends_when_it_is_told_to() -> None:
    async def scenario() -> None:
        pause = Pause()
        pause.end()  # of no consequence: nobody sleeps
        sleeper = asyncio.ensure_future(pause.sleep(FOR_EVER_S))
        await asyncio.sleep(0)
        assert not sleeper.done()
        pause.end()
        pause.end()
        await asyncio.wait_for(sleeper, 10)

    asyncio.run(scenario())


def test_a_pause_ends_by_itself_and_can_be_taken_again() -> None:
    async def scenario() -> None:
        pause = Pause()
        for _ in range(2):
            await asyncio.wait_for(pause.sleep(0.001), 10)

    asyncio.run(scenario())


def test_a_cancelled_pause_leaves_nothing_to_end() -> None:
    async def scenario() -> None:
        pause = Pause()
        sleeper = asyncio.ensure_future(pause.sleep(FOR_EVER_S))
        await asyncio.sleep(0)
        sleeper.cancel()
        assert (await asyncio.wait((sleeper,), timeout=10))[0] == {sleeper}
        pause.end()

    asyncio.run(scenario())
