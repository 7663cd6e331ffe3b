"""What helps while a job runs."""

from __future__ import annotations

import asyncio

import pytest

from torchrelay.cli.run.helpers import Helpers


def test_a_helper_that_fails_ends_the_wait_with_its_error() -> None:
    async def fails() -> None:
        raise ZeroDivisionError("a bug")

    async def test() -> None:
        helpers = Helpers()
        helpers.begin(fails())
        with pytest.raises(ZeroDivisionError):
            await asyncio.wait_for(helpers.until(asyncio.get_running_loop().create_future()), 10)

    asyncio.run(test())


def test_the_end_of_the_job_ends_the_wait_and_the_helpers() -> None:
    async def test() -> None:
        ended, cancelled = asyncio.get_running_loop().create_future(), asyncio.Event()

        async def helps() -> None:
            ended.set_result(None)
            try:
                await asyncio.Event().wait()
            finally:
                cancelled.set()

        helpers = Helpers()
        helpers.begin(helps())
        await asyncio.wait_for(helpers.until(ended), 10)
        helpers.end()
        await asyncio.wait_for(cancelled.wait(), 10)

    asyncio.run(test())
