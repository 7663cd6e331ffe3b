"""The controller, where this command starts it; and another one, when it ends before the job does."""

from __future__ import annotations

import asyncio
import json
import secrets
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from torchrelay.cli import user_environment
from torchrelay.cli.command_line import configs
from torchrelay.cli.command_line.options import RunOptions
from torchrelay.cli.display.summary import UNDER_WAY, RunSummary
from torchrelay.cli.folders import folder
from torchrelay.cli.run.child import CommandChild
from torchrelay.protocol.errors import FatalError
from torchrelay.protocol.messages import LeadReply
from torchrelay.protocol.names import EXIT_STOOD_DOWN, EXIT_USAGE
from torchrelay.protocol.options.members import member_line
from torchrelay.protocol.quorum import next_epoch
from torchrelay.protocol.words.phases import PLANNED, Phase

ADDRESS_POLL_S = 0.02
END_S = 10.0
SHORT_LIFE_S = 10.0
SHORT_LIVES = 5
"""After so many controllers in a row that ended this soon there is no other one: whatever ends them would go on."""

BESIDE_TRAINING = ("", Phase.PREPARING.value)


class Leader:
    """Keeps the controller that this command starts. `folder`: the run's. `say(text, style)` tells the user."""

    def __init__(
        self, options: RunOptions, run_id: str, folder: Path, secret_file: Path, say: Callable[[str, str], None]
    ) -> None:
        self._options = options
        self._run_id = run_id
        self._folder = folder
        self._say = say
        self._address_file = configs.controller_file(folder)
        self._config = configs.controller_config(options, run_id, secret_file, self._address_file)
        self.let_go = False
        """Whether it has been ended here, since another machine leads."""
        self._child: CommandChild | None = None
        self._began_s = 0.0
        self._short_lives = 0

    @property
    def child(self) -> CommandChild | None:
        return self._child

    @property
    def has_stood_down(self) -> bool:
        """Return whether the controller has ended because another machine leads the job, or is to lead it."""
        return self.let_go or (self._child is not None and self._child.exit_code == EXIT_STOOD_DOWN)

    async def start(self, known: LeadReply) -> tuple[str, int] | None:
        """Start the controller. Return its address, or None if it refuses this job. `known`: who led it before, if anybody.

        Raises FatalError if it cannot run.
        """
        return await self._start(self._config | first_of(self._options, known))

    async def take_over(self, summary: RunSummary, known: LeadReply, epoch: int) -> tuple[str, int] | None:
        """Start a controller in place of one on another machine. Return its address, or None and tell why it cannot run."""
        port = self._options.controller_port
        try:
            return await self._start(self._config | successor(self._options, summary, port, known, epoch))
        except FatalError as e:
            self._say(f"no controller can be started here: {e}", "red")
            return None

    async def end(self) -> None:
        """End the controller: another machine leads."""
        self.let_go = True
        if self._child is not None:
            await self._child.let_go(END_S)

    async def ended(self) -> None:
        """Return when the controller has ended."""
        assert self._child is not None
        await asyncio.wait((self._child.ended,))

    async def start_another(self, summary: RunSummary, known: LeadReply) -> bool:
        """Start a controller in place of one that has ended. Return False, with the reason told, if that is of no use.

        `summary`: the job so far. `known`: the last word of a controller that led, if there are several machines.
        """
        assert self._child is not None
        how = f"the controller {_how(self._child.exit_code)}"
        self._short_lives = self._short_lives + 1 if time.monotonic() - self._began_s < SHORT_LIFE_S else 0
        because = cannot_take_over(self._options, summary)
        if not because and self._short_lives >= SHORT_LIVES:
            because = f"{SHORT_LIVES} in a row have ended within {SHORT_LIFE_S:g} s"
        if not because:
            self._say(f"{how}: training goes on, and another controller is started", "yellow")
            try:
                epoch = next_epoch(known.epoch, self._options.node_rank, self._options.nnodes) if known.epoch else 0
                if await self._start(
                    self._config | successor(self._options, summary, self._options.controller_port, known, epoch)
                ):
                    return True
                because = "the next one cannot start"
            except FatalError as e:
                because = str(e)
        text = f"{how}, and no other takes its place ({because}): training goes on, but a rank that is lost now cannot be replaced"
        self._say(text, "red")
        return False

    async def _start(self, config: dict[str, Any]) -> tuple[str, int] | None:
        path = self._folder / "controller.json"
        folder.write_private(path, json.dumps(config, indent=1).encode())
        self._address_file.unlink(missing_ok=True)
        self._began_s = time.monotonic()
        self._child = child = await CommandChild.start(
            "torchrelay.controller", path, user_environment(), owns_stdout=False
        )
        while not self._address_file.exists():
            await asyncio.wait((child.ended,), timeout=ADDRESS_POLL_S)
            if child.exit_code == EXIT_USAGE:
                return None
            if child.exit_code is not None:
                raise FatalError(f"the controller {_how(child.exit_code)} before it could be reached")
        address = json.loads(self._address_file.read_bytes())
        return configs.reachable(address["host"]), int(address["port"])


def first_of(options: RunOptions, known: LeadReply) -> dict[str, Any]:
    """Return what else the first controller of these processes is told if there are several machines."""
    if options.nnodes == 1:
        return {}
    epoch = next_epoch(known.epoch, options.node_rank, options.nnodes)
    before = list(map(member_line, known.members))
    return {"epoch": epoch, "job_name": known.job or secrets.token_hex(4), "members_before": before}


def successor(options: RunOptions, summary: RunSummary, port: int, known: LeadReply, epoch: int) -> dict[str, Any]:
    """Return what is different for a controller that takes over. `epoch` 0: there is only one machine."""
    nproc = options.nproc_per_node
    first = (f"n{node}.w{place}" for node in range(options.nnodes) for place in range(nproc))
    told = {
        "listen_port": port,
        "takes_over": True,
        "holders": list(known.holders or summary.holders(first)),
        "migrations_begun": max(known.migrations_begun, len(summary.migrations)),
        "respawned": configs.respawned(summary.respawned_s),
        "imports_differ": summary.imports_differ,
        "resume_dir": "",
    }
    if not epoch:
        return told
    return told | {
        "epoch": epoch,
        "follows": known.epoch,
        "job_name": known.job,
        "members": list(map(member_line, known.members)),
        "nodes": list(known.nodes),
        "shared": known.shared,
    }


def cannot_take_over(options: RunOptions, summary: RunSummary) -> str:
    """Return why no other controller could lead the job; empty if one can."""
    if options.check_steps:
        return "it is a check"
    if options.resume is not None and not summary.has_entered:
        return "not all ranks have entered from the checkpoint"
    if options.parks_scripts and not summary.has_begun:
        return "the scripts have not begun"
    return ""


def stands(summary: RunSummary) -> bool:
    """Return whether ranks wait for a controller, as they do in the middle of a migration."""
    return any(
        m.outcome == UNDER_WAY and not (m.kind == PLANNED and m.phase in BESIDE_TRAINING) for m in summary.migrations
    )


def why_over(options: RunOptions, summary: RunSummary) -> str:
    """Return why a job without a controller cannot go on in its processes; empty if it trains. It gets no other controller."""
    if options.resume is not None and not summary.has_entered:
        return (
            "its controller was lost before all ranks had entered from the checkpoint, and no other one can let them in"
        )
    if stands(summary):
        return "its controller was lost in the midst of a migration, which nobody can finish"
    return ""


def _how(exit_code: int | None) -> str:
    if exit_code is not None and exit_code < 0:
        return f"was ended by {signal.Signals(-exit_code).name}"
    return f"ended with exit code {exit_code}"
