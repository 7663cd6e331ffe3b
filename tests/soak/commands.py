"""Commands that run for long, and commands that are run beside them."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence

from support.cli_harness import Cli
from support.machines import lose

ASK_S = 60.0


class Commands(Cli):
    """What they say goes to files: a pipe that nobody reads would be full some day."""

    def start_program(self, *command: str, **environment: str) -> subprocess.Popen[str]:
        number = len(self._started)
        inherited = {k: v for k, v in os.environ.items() if k not in ("TORCHRELAY_SECRET", "OMP_NUM_THREADS")}
        with open(self.folder / f"said-{number}", "w") as said:
            process = subprocess.Popen(
                command,
                cwd=self.folder,
                env=inherited | {"TORCHRELAY_STATE_DIR": str(self.state)} | environment,
                stdin=subprocess.DEVNULL,
                stdout=said,
                stderr=said,
                text=True,
            )
        self._started.append(process)
        return process

    def __exit__(self, *_: object) -> None:
        for process in self._started:
            if process.poll() is None:
                process.terminate()  # its controller, agent and ranks end with it
                try:
                    process.wait(ASK_S)
                except subprocess.TimeoutExpired:
                    lose(process)

    def ask(self, *inside: str, words: Sequence[str]) -> subprocess.CompletedProcess[str]:
        """`torchrelay` with these words; `inside`: what has it run on one of the machines. A failure if it does not answer."""
        command = [*inside, sys.executable, "-m", "torchrelay.cli", *words]
        environment = {**os.environ, "TORCHRELAY_STATE_DIR": str(self.state)}
        try:
            return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=ASK_S, check=False)
        except subprocess.TimeoutExpired as e:
            return subprocess.CompletedProcess(command, 1, "", f"no answer within {e.timeout:g} s")
