"""Starting the check's own programs as ranks, and reading what they report: JSON objects, a line each."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from sections import SectionError
from where import Where

PROGRAMS = Path(__file__).with_name("programs")


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class Rank:
    """A process of a program; what it writes to stderr is in a file."""

    def __init__(self, where: Where, program: str, environment: dict[str, str], name: str) -> None:
        self.errors = where.out / f"{name}.stderr"
        command = [sys.executable, str(PROGRAMS / f"{program}.py")]
        with self.errors.open("w") as stderr:
            self.process = subprocess.Popen(
                command,
                env=where.environment() | environment,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=stderr,
                text=True,
            )

    def next_report(self, deadline_s: float) -> dict[str, Any]:
        """Wait for the next report. Raises SectionError if the process ends before, or is too late."""
        late = threading.Timer(deadline_s, self.process.kill)
        late.start()
        try:
            assert self.process.stdout is not None
            for line in self.process.stdout:
                if line.startswith("{"):
                    return dict(json.loads(line))
        finally:
            late.cancel()
        code = self.process.wait()
        raise SectionError(
            f"a rank ended with exit code {code}, or was ended after {deadline_s:.0f} s: see {self.errors}"
        )


@contextmanager
def started(where: Where, program: str, size: int, **environment: str) -> Iterator[list[Rank]]:
    """Start `size` ranks of a program, and kill those that still run at the end."""
    shared = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port()), "WORLD_SIZE": str(size), **environment}
    ranks: list[Rank] = []
    try:
        for rank in range(size):
            own = {"RANK": str(rank), "LOCAL_RANK": "0"}
            ranks.append(Rank(where, program, shared | own, f"{program}-{rank}"))
        yield ranks
    finally:
        for each in ranks:
            each.process.kill()
            each.process.wait()
