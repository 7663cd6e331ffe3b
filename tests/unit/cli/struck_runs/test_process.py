from __future__ import annotations

import os
import select
import sys
from pathlib import Path

from torchrelay.cli.struck_runs import process

CHILD = """
import os, subprocess, sys, time
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
open("pids", "w").write(f"{os.getpid()} {child.pid}")
time.sleep(60)
"""


def test_what_a_command_says_is_in_files(tmp_path: Path) -> None:
    command = [sys.executable, "-c", "import os, sys; print(os.environ['X']); sys.exit(3)"]
    assert process.run(command, tmp_path, {"X": "here"}, 60.0) == 3
    assert (tmp_path / "stdout").read_text() == "here\n"


def test_at_the_limit_the_command_ends_and_what_it_started_with_it(tmp_path: Path) -> None:
    assert process.run([sys.executable, "-c", CHILD], tmp_path, {}, 1.5) is None
    for pid in map(int, (tmp_path / "pids").read_text().split()):
        assert _ends(pid)


def _ends(pid: int) -> bool:
    """A signal takes its time to end a process; it would sleep for far longer than this waits."""
    try:
        descriptor = os.pidfd_open(pid)
    except ProcessLookupError:
        return True
    try:
        return bool(select.select([descriptor], [], [], 10.0)[0])
    finally:
        os.close(descriptor)
