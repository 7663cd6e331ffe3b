"""A process of the job that this command starts: controller or agent."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from asyncio.subprocess import Process
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path


class CommandChild:
    """Ends when its stdin does: however this command ends, nothing of the job outlives it."""

    def __init__(self, process: Process) -> None:
        self._process = process
        self.ended = asyncio.ensure_future(process.wait())

    @classmethod
    async def start(
        cls,
        module: str,
        config: Path,
        environment: Mapping[str, str],
        *,
        owns_stdout: bool,
        waits: bool = False,
        hands_on: int | None = None,
    ) -> CommandChild:
        """Run `python -m module --config FILE` in a session of its own: a terminal's Ctrl-C reaches only this command.

        With `owns_stdout` its stdout is ours, for the script; without, it is our stderr. With `waits` it only imports what it
        needs, and reads the configuration once it is told a line. `hands_on`: a descriptor that it hands to processes of its own
        as their standard input.
        """
        # The file gets a number of its own: standard input is the pipe by which the child knows that this command lives.
        given = () if hands_on is None else (os.dup(hands_on),)
        try:
            process = await asyncio.create_subprocess_exec(
                sys.executable,
                "-m",
                module,
                "--config",
                str(config),
                *(("--wait",) if waits else ()),
                *(f"--hand-on={fd}" for fd in given),
                pass_fds=given,
                stdin=subprocess.PIPE,
                stdout=None if owns_stdout else sys.stderr,
                env=dict(environment),
                start_new_session=True,
            )
        finally:
            for fd in given:
                os.close(fd)
        return cls(process)

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def exit_code(self) -> int | None:
        """Return the exit code. Negative: ended by that signal. None: it runs."""
        return self._process.returncode

    def tell(self, line: str) -> None:
        """Write one line to its stdin. The line is lost if it ends meanwhile."""
        if self._process.stdin is not None and self.exit_code is None:
            self._process.stdin.write(f"{line}\n".encode())

    def signal(self, number: int) -> None:
        # Popen would look first whether the child has ended, and so take the exit code away from asyncio.
        if self.exit_code is None:
            with suppress(ProcessLookupError):
                os.kill(self.pid, number)

    def kill(self) -> None:
        self.signal(signal.SIGKILL)

    async def let_go(self, grace_s: float) -> None:
        """Close its stdin and wait for its end. Kill it after the grace."""
        if self._process.stdin is not None:
            self._process.stdin.close()
        _, late = await asyncio.wait((self.ended,), timeout=grace_s)
        if late:
            self.kill()
            await self.ended
