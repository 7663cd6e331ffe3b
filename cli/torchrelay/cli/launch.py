"""Carries out `torchrelay run`: starts controller and agent, follows the job, ends everything that it started."""

from __future__ import annotations

import asyncio
import functools
import hashlib
import json
import os
import secrets
import signal
import sys
from collections.abc import Callable
from pathlib import Path

from torchrelay.cli import configs, folder, narrate, user_environment
from torchrelay.cli.child import Child
from torchrelay.cli.control import Control, target
from torchrelay.cli.follow import Follower
from torchrelay.cli.journals import own_journals
from torchrelay.cli.leader import Leader, stands
from torchrelay.cli.machine import address_towards
from torchrelay.cli.options import LOOPBACK, RunOptions
from torchrelay.cli.restarting.runs import Runs
from torchrelay.cli.summary import Summary, as_json, faults_that_never_fired, has_planned_without_migration
from torchrelay.cli.teller import Teller
from torchrelay.protocol.errors import TorchrelayError
from torchrelay.protocol.names import EXIT_FAULT_NOT_INJECTED, EXIT_USAGE

STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
LAST_EVENTS_S = 5.0
CONTROLLER_END_S = 10.0
AGENT_END_S = 45.0
OTHER_AGENTS_S = 60.0


async def launch(options: RunOptions, command: tuple[str, ...]) -> int:
    """Runs the job; returns the exit code of the command. Raises UserError before anything was started."""
    secret = options.secret or secrets.token_hex(32).encode()
    run_id = secrets.token_hex(4) if options.secret is None else hashlib.sha256(b"run " + secret).hexdigest()[:8]
    name = run_id if options.nnodes == 1 else f"{run_id}-n{options.node_rank}"
    run_folder = folder.make_run_folder(folder.state_folder(os.environ), name)
    teller = Teller(sys.stderr, os.environ, options.quiet)
    try:
        with own_journals(name, run_folder), Follower(teller, options.events) as follower:

            def new_job(these: RunOptions, restarts: tuple[str, ...]) -> Job:
                return Job(these, run_id, run_folder, secret, follower, teller, restarts)

            runs = Runs(options, run_id, follower, new_job)
            code = await runs.run(command)
            teller.close()
            return _conclude(options, runs, follower.summary, code, teller)
    finally:
        teller.close()
        folder.remove_run(run_folder)


class Job:
    """The processes of this job on this machine. `restarts`: how others of it have ended and were started anew before, in words."""

    def __init__(
        self,
        options: RunOptions,
        run_id: str,
        run_folder: Path,
        secret: bytes,
        follower: Follower,
        teller: Teller,
        restarts: tuple[str, ...] = (),
    ) -> None:
        self._restarts = restarts
        self._options, self._run_id, self._folder, self._secret = options, run_id, run_folder, secret
        self.follower, self._teller = follower, teller
        self._leader: Leader | None = None
        self._agent: Child | None = None
        self._control: Control | None = None
        self._task: asyncio.Task[int] | None = None
        self._stops: set[asyncio.Task[None]] = set()
        self.stopped_by = 0
        """The signal that this command was ended by."""
        self.agent_lost = ""
        """How the agent was ended, and all ranks of this machine with it; empty if it was not."""

    @property
    def was_started(self) -> bool:
        return self._agent is not None

    async def run(self, command: tuple[str, ...]) -> int:
        """Exit code of the job on this machine."""
        self._task = asyncio.ensure_future(self._run(command))
        loop = asyncio.get_running_loop()
        for number in STOP_SIGNALS:
            loop.add_signal_handler(number, self._on_signal, number)
        try:
            return await self._task
        except asyncio.CancelledError:
            if self.stopped_by:
                return 128 + self.stopped_by
            raise
        finally:
            for number in STOP_SIGNALS:
                loop.remove_signal_handler(number)

    async def _run(self, command: tuple[str, ...]) -> int:
        secret_file = folder.write_secret(self._folder, self._secret)
        try:
            address = self._options.controller
            if address is None:
                self._leader = Leader(self._options, self._run_id, self._folder, secret_file, self._say)
                address = await self._leader.start()
            if address is None:
                return EXIT_USAGE  # the controller has said why
            self._agent = await self._start_agent(secret_file, address)
            self._write_entry(address, command)
            rewrite = functools.partial(self._write_entry, address, command)
            if self._options.nnodes > 1 and not self._options.quiet:
                self._teller.say([narrate.line(f"waiting until all {self._options.nnodes} machines are there")])
            async with Control(*address, self._secret) as self._control:
                return await self._until_the_agent_ends(self._agent, rewrite)
        finally:
            for child, grace_s in ((self._agent, AGENT_END_S), (self._controller, CONTROLLER_END_S)):
                if child is not None:
                    await child.let_go(grace_s)

    @property
    def _controller(self) -> Child | None:
        return self._leader.child if self._leader is not None else None

    async def _until_the_agent_ends(self, agent: Child, rewrite: Callable[[], None]) -> int:
        assert self._control is not None
        following = asyncio.ensure_future(self.follower.follow(self._control))
        leading = asyncio.ensure_future(self._keep_led(rewrite))
        try:
            await asyncio.wait((agent.ended, leading), return_when=asyncio.FIRST_COMPLETED)
            if leading.done():
                leading.result()
            code = await agent.ended
            there = self._controller is None or self._controller.exit_code is None
            await asyncio.wait((following,), timeout=LAST_EVENTS_S if code >= 0 and there else 0)
        finally:
            following.cancel()
            leading.cancel()
        if self._controller is not None and self.follower.summary.exit_code is not None:
            # It stays until the agents of all machines know that the job is over.
            await asyncio.wait((self._controller.ended,), timeout=OTHER_AGENTS_S if self._options.nnodes > 1 else 0)
        return self._code_of(code)

    async def _keep_led(self, rewrite: Callable[[], None]) -> None:
        """Another controller for each that ends before the job. `rewrite()` tells other commands of it."""
        while self._leader is not None:
            await self._leader.ended()
            # It ends by itself once the job is over, and everybody knows.
            if self.follower.summary.exit_code is not None or self.stopped_by:
                return
            if not await self._leader.start_another(self.follower.summary):
                if stands(self.follower.summary) and self._agent is not None:
                    self._say("a migration was under way, which nobody can finish: the job ends", "red")
                    self._agent.signal(signal.SIGTERM)
                return
            rewrite()

    def _code_of(self, agent_code: int) -> int:
        if self.stopped_by:
            return 128 + self.stopped_by
        if agent_code < 0:
            name = signal.Signals(-agent_code).name
            self.agent_lost = f"the agent was ended by {name}, and the ranks of this machine with it"
            self._teller.say([narrate.line(self.agent_lost, "red")])
            return 1
        code = self.follower.summary.exit_code
        return agent_code if code is None else code

    def _say(self, text: str, style: str) -> None:
        self._teller.say([narrate.line(text, style)])

    async def end(self, signal_number: int) -> None:
        """Ends the ranks with that signal, as if the user had stopped the job; it does not count as stopped by the user."""
        if self._control is not None:
            await self._control.stop(signal_number)

    def _on_signal(self, number: int) -> None:
        if self._agent is None:
            self.stopped_by = number
            if self._task is not None:
                self._task.cancel()
        elif not self.stopped_by:
            self.stopped_by = number
            task = asyncio.ensure_future(self._stop(number))
            self._stops.add(task)
            task.add_done_callback(self._stops.discard)
        else:
            self._agent.kill()  # the kernel ends the ranks with it

    async def _stop(self, number: int) -> None:
        """Ranks get the signal once, as they would from a terminal; without a controller the agent passes it on."""
        if self._control is not None:
            try:
                await self._control.stop(number)
                return
            except TorchrelayError as e:
                self._teller.say([narrate.line(f"{e}; stopping this machine's ranks only", "yellow")])
        if self._agent is not None:
            self._agent.signal(number)

    async def _start_agent(self, secret_file: Path, controller: tuple[str, int]) -> Child:
        config = configs.agent_config(
            self._options, self._run_id, self._folder, secret_file, target(*controller), _own_address(self._options)
        )
        path = self._folder / "agent.json"
        folder.write_private(path, json.dumps(config, indent=1).encode())
        return await Child.start("torchrelay.agent", path, user_environment(), owns_stdout=True)

    def _write_entry(self, controller: tuple[str, int], command: tuple[str, ...]) -> None:
        pids = [os.getpid(), *(child.pid for child in (self._controller, self._agent) if child is not None)]
        processes = tuple(filter(None, map(folder.Process.find, pids)))
        folder.write_run(
            self._folder, folder.Run(self._run_id, self._folder.name, *controller, command, processes, self._restarts)
        )


def _own_address(options: RunOptions) -> str:
    """Under which the other machines of the job reach this one."""
    if options.nnodes == 1:
        return LOOPBACK
    return address_towards(options.controller[0] if options.controller else options.master_addr)


def _conclude(options: RunOptions, runs: Runs, summary: Summary, code: int, teller: Teller) -> int:
    """Says how it ended, and turns a success without the faults and migrations that --inject asked for into a failure."""
    job = runs.job
    if not job.was_started and not summary.restarts:
        return code
    succeeded = summary.exit_code is not None and code == 0
    never_fired = faults_that_never_fired(options.faults, summary) if succeeded else []
    if never_fired or (succeeded and has_planned_without_migration(options.faults, summary)):
        code = EXIT_FAULT_NOT_INJECTED
    if not job.stopped_by and not (options.quiet and code == 0):
        resume = configs.resume_command(options.given, summary.checkpoint)
        teller.say(narrate.closing(summary, code, resume, never_fired, runs.no_restart))
    if options.json_summary:
        print(json.dumps(as_json(summary, code, never_fired)), flush=True)
    return code
