"""The processes of a job on this machine: starts controller and agent, follows the job, ends everything that it started."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import time
from pathlib import Path

from torchrelay.cli import user_environment
from torchrelay.cli.command_line import configs
from torchrelay.cli.command_line.addresses import LOOPBACK, parse_address
from torchrelay.cli.command_line.options import RunOptions
from torchrelay.cli.controller_client.control import Control, target
from torchrelay.cli.controller_client.follow import JobFollower
from torchrelay.cli.display import narrate
from torchrelay.cli.display.rungs import restart_in_words, rungs_taken
from torchrelay.cli.display.teller import Teller
from torchrelay.cli.folders import folder
from torchrelay.cli.folders.journals import empty_journals
from torchrelay.cli.leading.find import Asked, find, of_found
from torchrelay.cli.leading.held_port import check_given_port
from torchrelay.cli.leading.known_machines import read_machines
from torchrelay.cli.leading.seat import Seat
from torchrelay.cli.leading.watch import LeaderWatch
from torchrelay.cli.machine import address_towards
from torchrelay.cli.run.child import CommandChild
from torchrelay.cli.run.helpers import Helpers
from torchrelay.cli.run.leader import Leader, cannot_take_over, why_over
from torchrelay.protocol.errors import TorchrelayError
from torchrelay.protocol.messages import LeadReply
from torchrelay.protocol.names import EXIT_USAGE

STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
LAST_EVENTS_S = 5.0
CONTROLLER_END_S = 10.0
AGENT_END_S = 45.0
OTHER_AGENTS_S = 60.0
ONE_SIGNAL_S = 1.0
"""`timeout` sends a signal to the command and to its group, so that it comes twice and is meant once."""
ONE_KEY_S = 0.1
"""The same for SIGINT. No person presses Ctrl-C twice within it."""
FENCE_S = 3.0
"""For an agent to end its processes by itself."""


class LocalJob:
    """The processes of this job on this machine. `restarts`: how others of it have ended and were started anew before, in words."""

    def __init__(
        self,
        options: RunOptions,
        run_id: str,
        run_folder: Path,
        secret: bytes,
        follower: JobFollower,
        teller: Teller,
        restarts: tuple[str, ...] = (),
        seat: Seat | None = None,
    ) -> None:
        self._restarts = restarts
        self._seat = seat or Seat()
        self._started_s = time.time()
        self._options = options
        self._run_id = run_id
        self._folder = run_folder
        self._secret = secret
        self.follower = follower
        self._teller = teller
        self._leader: Leader | None = None
        self._agent: CommandChild | None = None
        self._coming_agent: CommandChild | None = None
        """It imports what it needs while the controller starts, and runs nothing before it is told to."""
        self._control: Control | None = None
        self._address = ("", 0)
        self._command: tuple[str, ...] = ()
        self._secret_file = Path()
        self._helpers = Helpers()
        self._following: asyncio.Task[None] | None = None
        self._belongs_elsewhere = False
        """A job of the same secret trains already, and this machine is to join it."""
        self._task: asyncio.Task[int] | None = None
        self._stops: set[asyncio.Task[None]] = set()
        self._stopped_s = 0.0
        self.stopped_by = 0
        """The signal that this command was ended by."""
        self.agent_lost = ""
        """Why the agent was ended before its job was, and all ranks of this machine with it; empty if it was not."""

    @property
    def was_started(self) -> bool:
        return self._agent is not None

    async def run(self, command: tuple[str, ...]) -> int:
        """Run the job on this machine, and return its exit code here."""
        self._task = asyncio.ensure_future(self._run(command))
        loop = asyncio.get_running_loop()
        heard = _heard_signals()
        for number in heard:
            loop.add_signal_handler(number, self._on_signal, number)
        try:
            return await self._task
        except asyncio.CancelledError:
            if self.stopped_by:
                return 128 + self.stopped_by
            raise
        finally:
            for number in heard:
                loop.remove_signal_handler(number)

    async def _run(self, command: tuple[str, ...]) -> int:
        self._command = command
        self._secret_file = folder.write_secret(self._folder, self._secret)
        while True:
            try:
                self._coming_agent = await self._prepare_agent()
                if (address := await self._find_or_lead()) is None:
                    return EXIT_USAGE  # the controller has said why
                self._address = address
                code = await self._run_with_agent(self._coming_agent)
            finally:
                for child, grace_s in ((self._coming_agent, AGENT_END_S), (self._controller, CONTROLLER_END_S)):
                    if child is not None:
                        await child.let_go(grace_s)
            if not self._belongs_elsewhere:
                return code
            self._seat.known = LeadReply(0)
            self._belongs_elsewhere = False
            self._seat.leads = False
            self._leader = self._agent = self._coming_agent = None

    async def _find_or_lead(self) -> tuple[str, int] | None:
        """Return where the job's controller is: on some machine already, or started here."""
        options = self._options
        known = self._seat.known
        if options.nnodes > 1:
            on_disk = read_machines(options.jit_dirs[0], self._run_id)
            self._seat.add(on_disk.addresses if on_disk is not None else ())
            self._seat.add(target(*address) for address in options.controllers)
            where = self._seat.addresses
            asked = Asked(options.node_rank, where, known.epoch, self._seat.leads, self._restarts != ())
            found = await find(asked, self._secret, self._note)
            if found is not None:
                self._options = of_found(options, found.reply)
                return parse_address("controller", found.address)
        if not known.epoch:
            check_given_port(options)
        self._leader = Leader(self._options, self._run_id, self._folder, self._secret_file, self._say)
        return await self._leader.start(known)

    async def _run_with_agent(self, coming: CommandChild) -> int:
        options = self._options
        host = _own_address(self._options)
        own = target(host, self._address[1] if self._leader is not None else options.controller_port)
        self._agent = agent = self._start_agent(coming, host, own)
        if options.nnodes > 1 and not options.joins and not options.given.quiet:
            self._note(f"waiting until all {options.nnodes} machines are there")
        try:
            await self._turn(self._address)
            if self._leader is not None:
                self._helpers.begin(self._keep_led(self._leader))
            if options.nnodes > 1:
                self._helpers.begin(LeaderWatch(options, self._run_id, self._secret, self._seat, own, self).run())
            await self._helpers.until(agent.ended)
            code = await agent.ended
            there = self._controller is None or self._controller.exit_code is None
            if self._following is not None:
                await asyncio.wait((self._following,), timeout=LAST_EVENTS_S if code >= 0 and there else 0)
        finally:
            self._helpers.end()
            if self._following is not None:
                self._following.cancel()
            if self._control is not None:
                await self._control.close()
        self._seat.leads = self._leader is not None
        if self._controller is not None and self.follower.summary.exit_code is not None:
            # It stays until the agents of all machines know that the job is over.
            await asyncio.wait((self._controller.ended,), timeout=OTHER_AGENTS_S if options.nnodes > 1 else 0)
        return code if self._belongs_elsewhere else self._code_of(code)

    @property
    def _controller(self) -> CommandChild | None:
        return self._leader.child if self._leader is not None else None

    async def _keep_led(self, leader: Leader) -> None:
        """Start another controller for each that ends before the job."""
        while True:
            await leader.ended()
            # It ends by itself once the job is over, and everybody knows.
            if self.follower.summary.exit_code is not None or self.stopped_by:
                return
            if leader.has_stood_down:
                await self._stood_down(leader)
                return
            if not await leader.start_another(self.follower.summary, self._seat.known):
                why = why_over(self._options, self.follower.summary)
                if self._options.nnodes == 1 and why and self._agent is not None:
                    self._say(f"the job cannot go on in its processes: {why}", "red")
                    self.agent_lost = why
                    self._agent.signal(signal.SIGTERM)
                return
            self._write_entry()

    async def _stood_down(self, leader: Leader) -> None:
        if self._leader is leader:
            self._leader = None
        if not leader.let_go and not self._seat.known.begun:
            await self.join_another()

    # What LeaderWatch needs: leading.watch.Hands.

    @property
    def address(self) -> str:
        return target(*self._address)

    @property
    def holds(self) -> bool:
        return self._controller is not None and self._controller.exit_code is None

    async def turn_to(self, address: str) -> None:
        """Follow another controller, which leads now."""
        leader = self._leader
        self._leader = None
        await self._turn(parse_address("controller", address))
        if leader is not None:
            await leader.end()

    async def lead(self, epoch: int, known: LeadReply) -> bool:
        leader = Leader(self._options, self._run_id, self._folder, self._secret_file, self._say)
        address = await leader.take_over(self.follower.summary, known, epoch)
        if address is None:
            return False
        self._leader = leader
        self._helpers.begin(self._keep_led(leader))
        await self._turn(address)
        return True

    async def join_another(self) -> None:
        if self._agent is not None and not self._belongs_elsewhere:
            self._belongs_elsewhere = True
            self._say("a job of the same secret is there already: this machine joins it", "yellow")
            await self._agent.let_go(AGENT_END_S)

    async def fence(self, reason: str) -> None:
        if self._agent is not None and self.follower.summary.exit_code is None:
            self.agent_lost = reason
            await self._agent.let_go(FENCE_S)

    def barred(self) -> str:
        return cannot_take_over(self._options, self.follower.summary)

    def say(self, text: str) -> None:
        self._say(text, "yellow")

    async def _turn(self, address: tuple[str, int]) -> None:
        """Connect agent and events to this controller from now on."""
        before = self._control
        self._address = address
        if self._following is not None:
            self._following.cancel()
        if before is not None:
            if self._agent is not None:
                self._agent.tell(target(*address))
            await before.close()
        self._control = Control(*address, self._secret)
        self._following = asyncio.ensure_future(self.follower.follow(self._control))
        self._write_entry()

    def _code_of(self, agent_code: int) -> int:
        if self.stopped_by:
            return 128 + self.stopped_by
        if self.agent_lost:
            return 1
        if agent_code < 0:
            name = signal.Signals(-agent_code).name
            self.agent_lost = f"the agent was ended by {name}, and the ranks of this machine with it"
            self._teller.say([narrate.line(self.agent_lost, "red")])
            return 1
        code = self.follower.summary.exit_code
        return agent_code if code is None else code

    def _note(self, text: str) -> None:
        self._say(text, "")

    def _say(self, text: str, style: str) -> None:
        self._teller.say([narrate.line(text, style)])

    async def end(self, signal_number: int) -> None:
        """End the ranks with that signal, as if the user had stopped the job. It does not count as stopped by the user."""
        if self._control is not None:
            await self._control.stop(signal_number, of_own_command=True)

    def _on_signal(self, number: int) -> None:
        if self._agent is None:
            self.stopped_by = number
            if self._task is not None:
                self._task.cancel()
        elif not self.stopped_by:
            self.stopped_by = number
            self._stopped_s = time.monotonic()
            task = asyncio.ensure_future(self._stop(number))
            self._stops.add(task)
            task.add_done_callback(self._stops.discard)
        elif number != self.stopped_by or time.monotonic() - self._stopped_s > _once_s(number):
            self._agent.kill()  # the kernel ends the ranks with it

    async def _stop(self, number: int) -> None:
        """Send the signal to ranks once, as a terminal would. Without a controller the agent passes it on."""
        if self._control is not None:
            try:
                await self._control.stop(number, of_own_command=True)
                return
            except TorchrelayError as e:
                self._teller.say([narrate.line(f"{e}; stopping this machine's ranks only", "yellow")])
        if self._agent is not None:
            self._agent.signal(number)

    async def _prepare_agent(self) -> CommandChild:
        empty_journals(self._folder.name, self._folder)
        return await CommandChild.start(
            "torchrelay.agent", self._agent_config, user_environment(), owns_stdout=True, waits=True, hands_on=0
        )

    @property
    def _agent_config(self) -> Path:
        return self._folder / "agent.json"

    def _start_agent(self, agent: CommandChild, host: str, own: str) -> CommandChild:
        """Start the agent. `host`: this machine; `own`: where a controller of this machine would listen."""
        config = configs.agent_config(
            self._options, self._run_id, self._folder, self._secret_file, target(*self._address), host, own
        )
        folder.write_private(self._agent_config, json.dumps(config, indent=1).encode())
        agent.tell("")
        return agent

    def rungs_changed(self) -> None:
        """Write down the rungs that were taken, for `torchrelay status`."""
        if self._control is not None:
            with contextlib.suppress(OSError):  # it goes on to say what it did
                self._write_entry()

    def _write_entry(self) -> None:
        pids = [os.getpid(), *(child.pid for child in (self._controller, self._agent) if child is not None)]
        processes = tuple(filter(None, map(folder.Process.find, pids)))
        run = folder.KnownRun(
            self._run_id,
            self._folder.name,
            *self._address,
            self._command,
            processes,
            tuple(map(restart_in_words, self.follower.summary.restarts)),
            rungs_taken(self.follower.summary),
            self._options.name,
            os.getcwd(),
            self._started_s,
        )
        folder.write_run(self._folder, run)


def _heard_signals() -> list[signal.Signals]:
    """Return the signals that end the job. `nohup` has SIGHUP ignored, so that a job outlives its terminal."""
    return [n for n in STOP_SIGNALS if n != signal.SIGHUP or signal.getsignal(n) is not signal.SIG_IGN]


def _own_address(options: RunOptions) -> str:
    """Return the address under which the job's other machines reach this one."""
    if options.nnodes == 1:
        return LOOPBACK
    return address_towards(options.controller[0] if options.controller else options.master_addr)


def _once_s(number: int) -> float:
    """Return within which time a signal that comes twice is meant once."""
    return ONE_KEY_S if number == signal.SIGINT else ONE_SIGNAL_S
