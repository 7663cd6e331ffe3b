"""How often a job is looked at."""

from __future__ import annotations

import asyncio
import itertools

from support.kube_world import World, in_world

from torchrelay.controller.kube.jobs.run import JobRun
from torchrelay.controller.kube.jobs.tender import CALM_LOOK_S, LOOK_S, JobTender
from torchrelay.controller.picture.worker import Worker


async def look(run: JobRun) -> None:
    pass


def test_a_calm_job_is_looked_at_as_rarely_as_its_agents_are_to_tell_and_a_busy_one_at_once() -> None:
    async def test(w: World) -> None:
        tended, job = JobTender(w.ledger, look, lambda key: None), w.run.core.job
        job.protection = "pending"
        assert await tended._once(w.run) == LOOK_S
        job.protection = "on"
        w.run.story.kube_events.clear()
        assert await tended._once(w.run) == CALM_LOOK_S
        job.tell_s = 4.0
        assert await tended._once(w.run) == 4.0
        job.protection = "pending"
        assert await tended._once(w.run) == LOOK_S

    in_world(test)


def test_a_large_job_in_which_much_happens_leaves_the_processor_to_others_between_two_looks() -> None:
    async def test(w: World) -> None:
        looked_s: list[float] = []
        enough = asyncio.Event()

        async def look(run: JobRun) -> None:
            looked_s.append(asyncio.get_running_loop().time())
            asyncio.get_running_loop().call_later(0.02, run.wake)  # while it rests
            if len(looked_s) == 4:
                enough.set()

        for rank in range(1000):
            w.run.core.job.workers[f"p{rank}.1"] = Worker(f"p{rank}.1", f"p{rank}", 1, rank)
        tended = JobTender(w.ledger, look, lambda key: None)
        tended.begin()
        await asyncio.wait_for(enough.wait(), 10.0)
        await tended.end()
        pauses_s = [later - earlier for earlier, later in itertools.pairwise(looked_s)]
        assert all(0.1 <= pause_s < LOOK_S for pause_s in pauses_s), pauses_s

    in_world(test)
