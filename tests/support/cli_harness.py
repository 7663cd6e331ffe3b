"""The command line as a user runs it: a process of its own, in a folder of its own."""

from __future__ import annotations

import os
import secrets
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

TIMEOUT_S = 120.0
SECRET = secrets.token_hex(16)
"""For jobs on several machines, whose folders in shared memory are named after it: tests that run beside these have another."""
_NOT_OURS = ("TORCHRELAY_SECRET", "OMP_NUM_THREADS")


class Cli:
    """`torchrelay` in `folder`; its state folder is `folder/state`."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.state = folder / "state"
        self._started: list[subprocess.Popen[str]] = []

    def __enter__(self) -> Cli:
        return self

    def __exit__(self, *_: object) -> None:
        """What a failed test has left running ends, and its job with it; pytest shows what it had said."""
        for process in self._started:
            left = process.poll() is None
            if left:
                process.kill()
            if process.stdout is not None and not process.stdout.closed:
                print("left running:" if left else "ended:", process.args, *process.communicate(), sep="\n")

    def start(self, *arguments: str, script: str | None = None, **environment: str) -> subprocess.Popen[str]:
        """SCRIPT among the arguments is a file with the text of `script`."""
        path = self.folder / "train.py"
        if script is not None:
            path.write_text(textwrap.dedent(script))
        words = (str(path) if a == "SCRIPT" else a for a in arguments)
        return self.start_program(sys.executable, "-m", "torchrelay.cli", *words, **environment)

    def start_program(self, *command: str, **environment: str) -> subprocess.Popen[str]:
        """Whatever is to be run here."""
        inherited = {k: v for k, v in os.environ.items() if k not in _NOT_OURS}
        process = subprocess.Popen(
            command,
            cwd=self.folder,
            env=inherited | {"TORCHRELAY_STATE_DIR": str(self.state)} | environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        self._started.append(process)
        return process

    def run(self, *arguments: str, script: str | None = None) -> subprocess.CompletedProcess[str]:
        process = self.start(*arguments, script=script)
        out, err = process.communicate(timeout=TIMEOUT_S)
        return subprocess.CompletedProcess(process.args, process.returncode, out, err)


def eventually(what: str, check: Callable[[], Any]) -> Any:
    """The first true answer of `check`; fails after a time that no machine needs."""
    end = time.monotonic() + TIMEOUT_S
    while time.monotonic() < end:
        if found := check():
            return found
        time.sleep(0.02)
    pytest.fail(f"it never came to this: {what}")
