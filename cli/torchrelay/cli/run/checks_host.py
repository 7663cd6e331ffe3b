"""Has the checks of a job's machines meet on this one: starts a controller for them, as a run does for its machines."""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

from torchrelay.cli.folders import folder
from torchrelay.cli.leading.held_port import hold
from torchrelay.cli.leading.known_machines import run_id_of
from torchrelay.cli.preflight.meeting import MeetingPlace
from torchrelay.cli.run.leader import Leader
from torchrelay.protocol.errors import FatalError
from torchrelay.protocol.messages import LeadReply

ALL_TOLD_S = 10.0
"""For the other checks to be told that all are there: each asks every second."""


class ChecksHost:
    """Keeps that controller, its port and its folder. `say(text)` tells the user what went wrong."""

    def __init__(self, say: Callable[[str], None]) -> None:
        self._say = say
        self._kept = ExitStack()
        self._leader: Leader | None = None

    async def open(self, place: MeetingPlace, secret: bytes) -> str:
        """Begin to have checks meet. Return why that is impossible; empty if it is not."""
        port = place.options.controller_port
        try:
            held = hold(port)
        except OSError:
            return f"the checks of other machines cannot meet here: port {port} is in use"
        self._kept.enter_context(held.sock)
        made = Path(self._kept.enter_context(tempfile.TemporaryDirectory(prefix="torchrelay-checks-")))
        options = replace(place.options, controller_port=held.port, checks_only=True)
        secret_file = folder.write_secret(made, secret)
        self._leader = Leader(options, run_id_of(secret), made, secret_file, lambda text, style: self._say(text))
        try:
            address = await self._leader.start(LeadReply(0))
        except FatalError as e:
            return f"the checks of other machines cannot meet here: {e}"
        return "" if address is not None else "the checks of other machines cannot meet here: no controller can listen"

    async def close(self, all_came: bool) -> None:
        """End, and where all checks have come, not before each of them has been told."""
        with self._kept:
            if self._leader is not None:
                if all_came:
                    await asyncio.wait((asyncio.ensure_future(self._leader.ended()),), timeout=ALL_TOLD_S)
                await self._leader.end()
