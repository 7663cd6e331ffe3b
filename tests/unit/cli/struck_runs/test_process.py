from __future__ import annotations

import os
import select
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

from torchrelay.cli.struck_runs import process

CHILD = """
import os, subprocess, sys, time
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(1000)"])
open("pids", "w").write(f"{os.getpid()} {child.pid}")
time.sleep(1000)
"""


def test_what_a_command_says_is_in_files(tmp_path: Path) -> None:
    command = [sys.executable, "-c", "import os, sys; print(os.environ['X']); sys.exit(3)"]
    assert process.run(command, tmp_path, {"X": "here"}, 60.0) == 3
    assert (tmp_path / "stdout").read_text() == "here\n"


def test_at_the_limit_the_command_ends_and_what_it_started_with_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Which comes once all of it has been started, however long that takes."""
    pids = tmp_path / "pids"

    def now_s() -> float:
        is_started = pids.exists() and pids.read_text()
        return time.monotonic() + (1000.0 if is_started else 0.0)

    monkeypatch.setattr(process, "time", SimpleNamespace(monotonic=now_s))
    assert process.run([sys.executable, "-c", CHILD], tmp_path, {}, 100.0, watch=lambda: None) is None
    both = [int(pid) for pid in pids.read_text().split()]
    assert len(both) == 2
    assert all(map(_ends, both))


def test_a_command_is_ended_at_its_limit_though_nobody_watches(tmp_path: Path) -> None:
    assert process.run(["sleep", "1000"], tmp_path, {}, 0.2) is None


def _ends(pid: int) -> bool:
    """A signal takes its time to end a process; it would sleep for far longer than this waits."""
    try:
        descriptor = os.pidfd_open(pid)
    except ProcessLookupError:
        return True
    try:
        return bool(select.select([descriptor], [], [], 60.0)[0])
    finally:
        os.close(descriptor)
