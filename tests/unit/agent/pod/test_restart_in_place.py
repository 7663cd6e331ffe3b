from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

from torchrelay.agent.pod.restart_in_place import RestartsInPlace
from torchrelay.protocol.messages import LateWorker
from torchrelay.protocol.names import WorkerId

PID, RANK = 4711, 3
AGAIN = WorkerId("train-3:aa.2")


class World:
    def __init__(self, end_s: float = 10.0, begin_s: float = 10.0) -> None:
        self.said: list[LateWorker] = []
        self.anew = RestartsInPlace(self.said.append, end_s, begin_s)
        self.gone, self.killed = asyncio.Event(), asyncio.Event()
        self.following = asyncio.ensure_future(self.anew.follow(PID, RANK, self.gone, self.killed.set))


def within(test: Callable[[], Coroutine[Any, Any, None]]) -> None:
    asyncio.run(asyncio.wait_for(test(), 10.0))


def test_who_comes_with_the_same_number_is_told_as_the_process_for_its_rank() -> None:
    async def test() -> None:
        w = World()
        await asyncio.sleep(0)
        w.anew.asked(RANK)
        w.gone.set()
        w.anew.connected(WorkerId("another"), PID + 1)
        assert w.said == []
        w.anew.connected(AGAIN, PID)
        assert w.said == [LateWorker(AGAIN, RANK, PID)]
        w.following.cancel()

    within(test)


def test_a_process_that_does_not_obey_is_ended_for_good() -> None:
    async def test() -> None:
        w = World(end_s=0.01)
        await w.killed.wait()
        w.following.cancel()

    within(test)


def test_of_one_that_has_come_again_nothing_more_is_said() -> None:
    async def test() -> None:
        w = World(begin_s=0.01)
        await asyncio.sleep(0)
        w.gone.set()
        w.anew.connected(AGAIN, PID)
        await w.following
        assert w.said == [LateWorker(AGAIN, RANK, PID)]

    within(test)


def test_one_that_does_not_come_again_is_not_waited_for_for_ever() -> None:
    async def test() -> None:
        w = World(begin_s=0.01)
        w.gone.set()
        await w.following
        ((late),) = w.said
        assert (late.rank, late.pid) == (RANK, 0)
        assert "has not begun anew" in late.reason
        assert not w.killed.is_set()

    within(test)


def test_where_none_is_on_its_way_the_answer_is_no() -> None:
    async def test() -> None:
        said: list[LateWorker] = []
        RestartsInPlace(said.append).asked(RANK)
        ((late),) = said
        assert (late.worker, late.rank, late.pid) == ("", RANK, 0)

    within(test)
