"""Starting the ranks of a program in `programs/`, and hearing what they say."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from support.ports import free_port

PROGRAMS = Path(__file__).parent / "programs"
TESTS = Path(__file__).resolve().parents[1]
TIMEOUT_S = 150


@dataclass
class Rank:
    """A process that runs a program."""

    process: subprocess.Popen[str]

    def next_report(self) -> dict[str, Any]:
        """Waits for the next thing that it says. Raises AssertionError if it ends before."""
        assert self.process.stdout is not None
        for line in self.process.stdout:
            if line.startswith("{"):
                return dict(json.loads(line))
        raise AssertionError(f"a rank ended with {self.process.wait()} and did not report")

    def go_on(self) -> None:
        """Lets it go on, if it waits for a line on stdin."""
        assert self.process.stdin is not None
        self.process.stdin.write("\n")
        self.process.stdin.flush()

    def kill(self) -> None:
        """Ends it as a lost machine would."""
        self.process.kill()
        assert self.process.wait() == -signal.SIGKILL

    def end(self) -> None:
        """Waits for its end. Raises AssertionError if it failed."""
        assert self.process.wait(TIMEOUT_S) == 0


@contextmanager
def started(program: str, size: int, processes: int | None = None, **environment: str) -> Iterator[list[Rank]]:
    """Starts the ranks of a program, and ends those that still run afterwards. Processes beyond `size` have higher RANKs."""
    shared = {"WORLD_SIZE": str(size), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
    shared |= {"OMP_NUM_THREADS": "1"}  # one order of summation
    shared |= {"PYTHONPATH": os.pathsep.join(filter(None, (str(TESTS), os.environ.get("PYTHONPATH", ""))))}
    command = [sys.executable, str(PROGRAMS / f"{program}.py")]
    with ExitStack() as stack:
        ranks = []
        for number in range(processes or size):
            env = os.environ | shared | {"RANK": str(number)} | environment
            pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
            process = stack.enter_context(subprocess.Popen(command, env=env, text=True, **pipes))
            stack.callback(process.kill)
            ranks.append(Rank(process))
        yield ranks


def run(program: str, size: int, **environment: str) -> list[dict[str, Any]]:
    """Runs all ranks to their end. Returns what each reports. Raises AssertionError if one fails."""
    with started(program, size, **environment) as ranks:
        reports = [rank.next_report() for rank in ranks]
        for rank in ranks:
            rank.end()
    return reports


def report(**facts: Any) -> None:
    """Says something to the test that started this rank."""
    print(json.dumps(facts), flush=True)
