"""Looks after jobs, each in a task of its own: a fault or a delay in one job does not affect the others."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine
from typing import Any

from torchrelay.controller.kube.client.api import Refused
from torchrelay.controller.kube.cluster.pods import JobKey
from torchrelay.controller.kube.jobs.ledger import Ledger
from torchrelay.controller.kube.jobs.run import JobRun
from torchrelay.protocol.errors import RetryableError
from torchrelay.protocol.logs.log_records import of_run
from torchrelay.protocol.machine.pause import Pause

log = logging.getLogger(__name__)

LOOK_S = 0.5
CALM_LOOK_S = 2.0
"""Time between looks while nothing has happened: what has to be noticed by the clock alone can wait for so long, and for longer
where agents are asked to tell more rarely, since there are many jobs."""
REST_S_PER_PROCESS = 100e-6
"""Whatever happens, a job is not looked at before so much time for each of its processes has passed: a look costs in proportion."""
AWAY_S = 3.0
"""Time to the next look after the API server failed."""
LOOK_MOST_S = 30.0
"""Time for all that one look asks of the API server."""


class JobTender:
    """Looks after jobs. `look(run)` is one look at one job. A job whose look fails is unprotected, and is looked at more rarely.

    `forget(key)` is called once nothing of the name is there any more: what was kept for it would stay for ever.
    """

    def __init__(
        self,
        ledger: Ledger,
        look: Callable[[JobRun], Coroutine[Any, Any, None]],
        forget: Callable[[JobKey], None],
    ) -> None:
        self._ledger = ledger
        self._look = look
        self._forget = forget
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._pauses: dict[str, Pause] = {}
        self._said: dict[JobKey, str] = {}
        self._ends = False

    def begin(self) -> None:
        """Take in jobs that are new. To be called often."""
        for run in (*self._ledger.runs.values(), *self._ledger.over):
            if run.id not in self._tasks:
                self._pauses[run.id] = Pause()
                run.wake = self._pauses[run.id].end
                self._tasks[run.id] = asyncio.create_task(self._tend(run))
        for gone in [name for name, task in self._tasks.items() if task.done()]:
            del self._tasks[gone], self._pauses[gone]

    async def end(self) -> None:
        self._ends = True  # a look that comes to its end at this moment keeps the cancellation to itself
        for task in self._tasks.values():
            task.cancel()
        await asyncio.gather(*self._tasks.values(), return_exceptions=True)

    async def _tend(self, run: JobRun) -> None:
        while self._ledger.knows(run):
            failed = run.failure
            pause_s = await self._once(run)
            if self._ends:
                return
            rest_s = REST_S_PER_PROCESS * len(run.core.job.workers)
            await self._pauses[run.id].sleep(pause_s if run.failure == failed else 0.0, rest_s)
        if run.key not in self._ledger.runs:
            self._said.pop(run.key, None)
            self._forget(run.key)

    async def _once(self, run: JobRun) -> float:
        """Look at one job. Return how long to wait then."""
        try:
            await asyncio.wait_for(self._look(run), LOOK_MOST_S)
        except RetryableError as e:
            self._tell(run.key, f"tried again: {e}")
            return AWAY_S
        except Refused as e:
            self._tell(run.key, str(e))
        except asyncio.TimeoutError:
            self._tell(run.key, f"the API server has not answered within {LOOK_MOST_S:.0f} s")
            return AWAY_S
        except Exception as e:  # noqa: BLE001 - whatever it is, the next job must not notice
            if run.failure:
                self._tell(run.key, f"it is not looked after: {type(e).__name__}: {e}")
                return AWAY_S
            run.failed(e)
        return LOOK_S if run.is_busy else max(CALM_LOOK_S, run.core.job.tell_s)

    def _tell(self, key: JobKey, text: str) -> None:
        if self._said.get(key) != text:
            self._said[key] = text
            of_run(log, key).warning("%s: %s", key, text)
