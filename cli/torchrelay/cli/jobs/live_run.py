"""A running job of this user, for a dashboard: its events as they come, and its status now and then."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable
from contextlib import aclosing
from pathlib import Path

from torchrelay.cli.controller_client.control import Control
from torchrelay.cli.folders import folder
from torchrelay.cli.folders.history import history_folder, kept_record
from torchrelay.cli.folders.shown_run import name_start_and_folder, shown_command
from torchrelay.dashboard.hub import Answer
from torchrelay.dashboard.record import RunRecord
from torchrelay.dashboard.view import Seen
from torchrelay.protocol.errors import FrameError, TorchrelayError, UserError
from torchrelay.protocol.events import from_job_event
from torchrelay.protocol.messages import JobEvent, JobStatus

AGAIN_S = 1.0
LOOK_AGAIN_S = 1.0
"""For jobs that have begun since."""
ASKED_HERE = "(asked for on the dashboard)"
"""Behind the reason, in the events."""
STATUS_EVERY_S = 2.0
RANKS_A_SECOND = 2000
"""The status of a large job is asked for less often."""


class LiveRun:
    """`state`: the folder in which running jobs are listed."""

    def __init__(self, state: Path, run: folder.KnownRun) -> None:
        self._state = state
        self._run = run
        self._record = RunRecord(run.run_id)
        self._newest_s = 0.0
        self._has_begun = False
        self._status: JobStatus | None = None
        self._problem = ""
        self._control: Control | None = None

    def seen(self) -> Seen:
        run = self._run
        return Seen(
            self._record,
            time.time(),
            shown_command(run.command),
            self._status,
            self._problem,
            self._status is not None,
            when=name_start_and_folder(run.name, run.started_s, run.working_folder),
        )

    async def follow(self) -> None:
        """Follow the job until it is over. Its controller may end, and another one may answer at another address."""
        if not self._has_begun:
            self._has_begun = True
            await self._begin()
        while self._record.ended is None:
            try:
                self._run = folder.choose_run(self._state, self._run.run_id)
                secret = folder.read_secret(self._state / self._run.folder)
            except UserError:
                self._problem = "its command has ended, and nobody has told how"
                return
            async with Control(self._run.controller_host, self._run.controller_port, secret) as control:
                self._control = control
                listening, asking = (asyncio.ensure_future(w) for w in (self._listen(control), self._ask(control)))
                try:
                    await asyncio.wait((listening, asking), return_when=asyncio.FIRST_COMPLETED)
                    await asyncio.wait((listening,), timeout=AGAIN_S)  # it may have heard the end, and not taken it yet
                finally:
                    self._control = self._status = None
                    listening.cancel()
                    asking.cancel()
                    await asyncio.wait((listening, asking))
                for task in (listening, asking):
                    if not task.cancelled():
                        task.result()
            await asyncio.sleep(AGAIN_S)

    async def _begin(self) -> None:
        """Read what is kept of the job so far: a controller does not keep each step, and without them goodput is not known."""
        kept = await asyncio.to_thread(kept_record, history_folder(os.environ), self._run.run_id)
        if kept is not None:
            self._record = kept
            self._newest_s = kept.newest_s

    async def _listen(self, control: Control) -> None:
        known_s = self._newest_s
        try:
            async with aclosing(control.watch(without_progress=False)) as told:
                async for event in told:
                    self._problem = ""
                    if event.time_s > known_s:  # a stream begins with all that its controller has ever told
                        self._take(event)
        except TorchrelayError as e:
            self._without_controller(e)

    def _without_controller(self, error: TorchrelayError) -> None:
        self._problem = f"it runs without its controller ({error})"
        self._status = None

    def _take(self, event: JobEvent) -> None:
        self._newest_s = event.time_s
        try:
            self._record.take(from_job_event(event), event.time_s)
        except FrameError:  # of a newer controller
            return

    async def _ask(self, control: Control) -> None:
        """Ask for the status again and again, until nobody answers.

        The stream alone would wait for a controller that is gone, while another one may be elsewhere.
        """
        while True:
            try:
                self._status = await control.status()
                self._problem = ""
            except TorchrelayError as e:
                self._without_controller(e)
                return
            await asyncio.sleep(max(STATUS_EVERY_S, self._record.world_size / RANKS_A_SECOND))

    async def migrate(self, rank: int, reason: str, by: str) -> Answer:
        if self._control is None or self._status is None:
            return Answer(False, "the job has no controller that could be asked")
        try:
            reply = await self._control.migrate(rank, f"{reason} {ASKED_HERE}")
        except TorchrelayError as e:
            return Answer(False, str(e))
        return Answer(reply.accepted, reply.message or f"migration {reply.migration} is under way")

    async def clear(self, subject: str, reason: str, check: bool, by: str) -> Answer:
        if self._control is None or self._status is None:
            return Answer(False, "the job has no controller that could be asked")
        try:
            reply = await self._control.clear(subject, f"{reason} {ASKED_HERE}", check)
        except TorchrelayError as e:
            return Answer(False, str(e))
        return Answer(reply.cleared or reply.checking, reply.message)


async def follow_jobs(put: Callable[[str, LiveRun], object], state: Path, run_id: str | None) -> None:
    """Follow each job of this user, whenever it begins, or only `run_id`. `put` is told id and job."""
    following: dict[str, asyncio.Task[None]] = {}
    try:
        while True:
            for run in folder.one_of_each(state):
                if run.run_id not in following and run_id in (None, run.run_id):
                    live = LiveRun(state, run)
                    put(run.run_id, live)
                    following[run.run_id] = asyncio.ensure_future(live.follow())
            for task in following.values():
                if task.done():
                    task.result()
            await asyncio.sleep(LOOK_AGAIN_S)
    finally:
        for task in following.values():
            task.cancel()
