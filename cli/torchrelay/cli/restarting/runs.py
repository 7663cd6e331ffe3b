"""Runs a job, and starts it anew where it cannot go on in its processes, as `choice` decides."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Protocol

from torchrelay.cli.command_line.options import RunOptions
from torchrelay.cli.controller_client.follow import JobFollower
from torchrelay.cli.display.rungs import restart_in_words, rungs_taken
from torchrelay.cli.display.summary import RunSummary
from torchrelay.cli.restarting.checkpoints import KEPT, own_checkpoints, remove_forgotten, remove_old
from torchrelay.cli.restarting.choice import Fall, RestartChoice, Saved, choose
from torchrelay.cli.restarting.life_sign import LifeSign
from torchrelay.protocol.events import JobRestarted, Occurrence, RestartDone, to_job_event
from torchrelay.protocol.options.faults import Fault
from torchrelay.protocol.words.phases import ABANDONED, CHECKPOINT

OF_USE_S = 1800.0
"""After this long from a restart on, an older just-in-time checkpoint is worth less than what the script saves itself."""


class Started(Protocol):
    """One incarnation of a job, such as `run.local_job.LocalJob`."""

    stopped_by: int

    @property
    def was_started(self) -> bool: ...
    @property
    def agent_lost(self) -> str:
        """Return how the agent ended, and all ranks with it; empty if it did not end by itself."""

    async def run(self, command: tuple[str, ...]) -> int: ...
    def rungs_changed(self) -> None:
        """Note that a loss was made good, or that a restart's cost is known."""


class Runs:
    """Runs a job with its restarts.

    `new_job(options, restarts)` makes the job of one incarnation; `restarts`: those before it, in words.
    `is_shared()`: whether all machines of the job see the same folder of checkpoints.
    """

    def __init__(
        self,
        options: RunOptions,
        run_id: str,
        follower: JobFollower,
        new_job: Callable[[RunOptions, tuple[str, ...]], Started],
        is_shared: Callable[[], bool] = lambda: True,
    ) -> None:
        self._is_shared = is_shared
        self._options = options
        self._run_id = run_id
        self._follower = follower
        self._new_job = new_job
        self._sign = LifeSign(options.jit_dirs, run_id, options.resume, options.node_rank)
        self._falls: list[Fall] = []
        self._broken: list[str] = []
        self._once: set[str] = set()
        """Folders that ranks did not enter from since something else had ended them: they are tried once more."""
        self._scripts_begun = 0
        self._fell_s = self._migration_s = 0.0
        """When the loss was that is not made good yet, and when the latest migration began."""
        self.job: Started = new_job(options, ())
        """The latest incarnation."""
        self.no_restart = ""
        """Why it was not started anew."""

    async def run(self, command: tuple[str, ...]) -> int:
        """Run the job, with restarts. Return the exit code of the last incarnation."""
        self._follower.heard = self._heard
        self._sign.give()  # before what ended runs have left is removed: this one may enter from it
        giving = asyncio.ensure_future(self._sign.keep_up())
        try:
            return await self._run_all(command)
        finally:
            giving.cancel()
            self._sign.end()

    async def _run_all(self, command: tuple[str, ...]) -> int:
        options = self._options
        self._remove_forgotten()
        while True:
            removal = asyncio.ensure_future(self._remove_what_is_old())
            try:
                code = await self.job.run(command)
            finally:
                removal.cancel()
            fall = self._fall(code, options)
            if fall is None:
                if code == 0:
                    self._remove(0)
                return code
            choice = self._choose(fall)
            if not choice.rung:
                self.no_restart = choice.reason
                self._remove(KEPT)
                self._sign.end()
                self._remove_forgotten()
                return code
            self._falls.append(fall)
            options = self._next(options, fall, choice)
            self.job = self._new_job(options, tuple(map(restart_in_words, self._follower.summary.restarts)))

    def _choose(self, fall: Fall) -> RestartChoice:
        given = self._options
        earlier = []
        if self._is_shared():
            earlier = [s for s in own_checkpoints(given.jit_dirs, self._run_id) if s != fall.saved]
        if given.resume is not None:
            earlier.insert(0, Saved(str(given.resume), -1))
        asked = given.given.max_restarts is not None
        return choose(fall, self._falls, given.max_restarts, asked, earlier, self._broken)

    def _fall(self, code: int, options: RunOptions) -> Fall | None:
        """Return why the job cannot go on; None if it has ended as it should, or as somebody wanted."""
        summary = self._follower.summary
        job = self.job
        if job.stopped_by or (job.agent_lost and options.nnodes > 1):
            return None  # the others go on, or not, without this machine
        self._fell_s = self._fell_s or time.time()
        if options.restarts_done and options.resume is not None and not summary.has_entered:
            self._did_not_enter(str(options.resume), bool(summary.killed or job.agent_lost))
        if (told := summary.fall) is not None:
            saved = Saved(told.directory, told.saved_boundary) if told.directory else None
            step = saved.step if saved is not None else told.boundary
            refused = told.refused
            if told.directory and not self._is_shared():
                saved = None
                refused = f"the machines do not share {told.directory}"
            reason = told.reason.partition("; a just-in-time checkpoint is in ")[0]
            return Fall(reason, told.exit_code, step, told.by_script, saved, refused, told.losses_at_step)
        if job.agent_lost:
            return Fall(job.agent_lost, code, summary.boundary, refused="nobody was left who could save")
        if not job.was_started and options.restarts_done:
            why = f"ranks cannot enter from {options.resume}"
            return Fall(why, code, summary.boundary, refused=why)
        return None

    def _did_not_enter(self, directory: str, was_struck: bool) -> None:
        """Note that ranks did not enter from a checkpoint, and give the checkpoint up if it is to blame.

        If something else has ended the ranks, it is given up only the second time.
        """
        if was_struck and directory not in self._once:
            self._once.add(directory)
        else:
            self._broken.append(directory)

    def _next(self, before: RunOptions, fall: Fall, choice: RestartChoice) -> RunOptions:
        summary = self._follower.summary
        number = before.restarts_done + 1
        self._remove(KEPT)
        self._scripts_begun += choice.saved is None
        directory, step = (choice.saved.directory, choice.saved.step) if choice.saved is not None else ("", -1)
        steps = max(fall.step - max(step, 0), 0)
        self._tell(JobRestarted(number, choice.rung, directory, step, steps, fall.reason, choice.tried))
        return replace(
            before,
            resume=Path(directory) if directory else None,
            faults=faults_left(before.faults, summary),
            spares=spares_now(before, summary),
            restarts_done=number,
            scripts_begun=self._scripts_begun,
            migrations_begun=len(summary.migrations),
            respawned_s=summary.respawned_s,
            imports_differ=summary.imports_differ,
        )

    def _heard(self, before: RunSummary, summary: RunSummary) -> None:
        """Take note of what an event has changed in the summary."""
        are_same = summary.migrations is before.migrations and summary.restarts is before.restarts
        if not are_same and rungs_taken(summary) != rungs_taken(before):
            self.job.rungs_changed()
        if len(summary.moves) > len(before.moves):
            self._migration_s = time.time()
        if summary.fall is not None and before.fall is None:
            led_to_it = bool(summary.moves) and summary.moves[-1].outcome in (CHECKPOINT, ABANDONED)
            self._fell_s = self._fell_s or (self._migration_s if led_to_it else time.time())
        if not summary.restarts or summary.restarts[-1].down_s is not None or summary.exit_code is not None:
            return
        latest = summary.restarts[-1]
        if summary.has_entered or summary.protection.is_known or summary.boundary > max(latest.boundary, 0):
            fell_s = self._fell_s
            self._fell_s = 0.0
            self._tell(RestartDone(latest.restart, time.time() - fell_s))

    def _tell(self, occurrence: Occurrence) -> None:
        self._follower.take(to_job_event(occurrence, time.time()))

    async def _remove_what_is_old(self) -> None:
        if self._falls:
            await asyncio.sleep(OF_USE_S)
            self._remove(0)

    def _remove_forgotten(self) -> None:
        remove_forgotten(self._options.jit_dirs, time.time())

    def _remove(self, keep: int) -> None:
        if not keep:
            self._sign.end()  # else the folder is never empty
        remove_old(self._options.jit_dirs, self._run_id, keep)
        self._sign.give()


def spares_now(before: RunOptions, summary: RunSummary) -> int:
    """Return how many spares this machine is to have, with those that somebody asked for since it began."""
    if summary.pool is None or before.nnodes > 1:  # of several machines each has its own number
        return before.spares
    return max(before.spares, summary.pool.wanted)


def faults_left(faults: tuple[Fault, ...], summary: RunSummary) -> tuple[Fault, ...]:
    """Return the faults that have not struck yet, as often as they were given."""
    struck = Counter(summary.faults_injected)
    left = []
    for fault in faults:
        if struck[str(fault)]:
            struck[str(fault)] -= 1
        else:
            left.append(fault)
    return tuple(left)
