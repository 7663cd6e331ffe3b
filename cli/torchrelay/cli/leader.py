"""The controller, where this command starts it; and another one, when it ends before the job does."""

from __future__ import annotations

import asyncio
import json
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from torchrelay.cli import configs, folder, user_environment
from torchrelay.cli.child import Child
from torchrelay.cli.options import RunOptions
from torchrelay.cli.summary import UNDER_WAY, Summary
from torchrelay.protocol.errors import FatalError
from torchrelay.protocol.names import EXIT_USAGE
from torchrelay.protocol.phases import PLANNED, Phase

ADDRESS_POLL_S = 0.02
SHORT_LIFE_S = 10.0
SHORT_LIVES = 5
"""After so many controllers in a row that ended this soon there is no other one: whatever ends them would go on."""

BESIDE_TRAINING = ("", Phase.PREPARING.value)


class Leader:
    """`folder`: the run's. `say(text, style)` tells the user."""

    def __init__(
        self, options: RunOptions, run_id: str, folder: Path, secret_file: Path, say: Callable[[str, str], None]
    ) -> None:
        self._options, self._run_id, self._folder, self._say = options, run_id, folder, say
        self._address_file = configs.controller_file(folder)
        self._config = configs.controller_config(options, run_id, secret_file, self._address_file)
        self._child: Child | None = None
        self._began_s = 0.0
        self._short_lives = 0

    @property
    def child(self) -> Child | None:
        return self._child

    async def start(self) -> tuple[str, int] | None:
        """Its address, or None if it refuses this job. Raises FatalError if it cannot run."""
        return await self._start(self._config)

    async def ended(self) -> None:
        """Returns when it has."""
        assert self._child is not None
        await asyncio.wait((self._child.ended,))

    async def start_another(self, summary: Summary) -> bool:
        """In the place of one that has ended. `summary`: the job so far. False, with the reason told, if that is of no use."""
        assert self._child is not None
        how = f"the controller {_how(self._child.exit_code)}"
        self._short_lives = self._short_lives + 1 if time.monotonic() - self._began_s < SHORT_LIFE_S else 0
        because = cannot_take_over(self._options, summary)
        if not because and self._short_lives >= SHORT_LIVES:
            because = f"{SHORT_LIVES} in a row have ended within {SHORT_LIFE_S:g} s"
        if not because:
            self._say(f"{how}: training goes on, and another one takes its place", "yellow")
            try:
                if await self._start(self._config | successor(self._options, summary, self._port())):
                    return True
                because = "the next one cannot start"
            except FatalError as e:
                because = str(e)
        text = f"{how}, and no other takes its place ({because}): training goes on, but a rank that is lost now cannot be replaced"
        self._say(text, "red")
        return False

    def _port(self) -> int:
        return int(json.loads(self._address_file.read_bytes())["port"])

    async def _start(self, config: dict[str, Any]) -> tuple[str, int] | None:
        path = self._folder / "controller.json"
        folder.write_private(path, json.dumps(config, indent=1).encode())
        self._address_file.unlink(missing_ok=True)
        self._began_s = time.monotonic()
        self._child = child = await Child.start("torchrelay.controller", path, user_environment(), owns_stdout=False)
        while not self._address_file.exists():
            await asyncio.wait((child.ended,), timeout=ADDRESS_POLL_S)
            if child.exit_code == EXIT_USAGE:
                return None
            if child.exit_code is not None:
                raise FatalError(f"the controller {_how(child.exit_code)} before it could be reached")
        address = json.loads(self._address_file.read_bytes())
        return configs.reachable(address["host"]), int(address["port"])


def successor(options: RunOptions, summary: Summary, port: int) -> dict[str, Any]:
    """What a controller that takes over is told otherwise than the first one."""
    nproc = options.nproc_per_node
    first = (f"n{node}.w{place}" for node in range(options.nnodes) for place in range(nproc))
    return {
        "listen_port": port,
        "takes_over": True,
        "holders": list(summary.holders(first)),
        "migrations_begun": len(summary.migrations),
        "resume_dir": "",
    }


def cannot_take_over(options: RunOptions, summary: Summary) -> str:
    """Why no other controller could lead the job; empty if one can."""
    if options.check_steps:
        return "it is a check"
    if options.resume is not None and not summary.has_entered:
        return "not all ranks have entered from the checkpoint"
    return ""


def stands(summary: Summary) -> bool:
    """Whether ranks wait for a controller: in the midst of a migration they do."""
    return any(
        m.outcome == UNDER_WAY and not (m.kind == PLANNED and m.phase in BESIDE_TRAINING) for m in summary.migrations
    )


def _how(exit_code: int | None) -> str:
    if exit_code is not None and exit_code < 0:
        return f"was ended by {signal.Signals(-exit_code).name}"
    return f"ended with exit code {exit_code}"
