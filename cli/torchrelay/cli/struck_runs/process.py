"""One command in a folder of its own, with a time limit; whatever happens, nothing that it started outlives it."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from torchrelay.protocol.names import ENV_NOTIFY, ENV_SECRET

POLL_S = 0.02
END_S = 30.0
"""How long the parts of a killed run may take to see that their command is gone."""
_NOT_INHERITED = (ENV_SECRET, ENV_NOTIFY, "TORCHRELAY_STATE_DIR")


def run(
    command: Sequence[str],
    folder: Path,
    environment: Mapping[str, str],
    timeout_s: float,
    watch: Callable[[], None] | None = None,
    cwd: Path | None = None,
) -> int | None:
    """Run a command. Return its exit code, or None if it was ended at the limit. stdout and stderr go to files in `folder`.

    `watch` is called again and again while it runs. `cwd`: where it runs, `folder` unless given.
    """
    inherited = {k: v for k, v in os.environ.items() if k not in _NOT_INHERITED}
    with open(folder / "stdout", "wb") as stdout, open(folder / "stderr", "wb") as stderr:
        process = subprocess.Popen(
            command,
            cwd=cwd or folder,
            env={**inherited, **environment},
            stdin=subprocess.DEVNULL,
            stdout=stdout,
            stderr=stderr,
            start_new_session=True,
        )
        try:
            return _wait(process, timeout_s, watch)
        finally:
            _end(process)


def _wait(process: subprocess.Popen[bytes], timeout_s: float, watch: Callable[[], None] | None) -> int | None:
    end = time.monotonic() + timeout_s
    while time.monotonic() < end:
        if watch is not None:
            watch()
        with suppress(subprocess.TimeoutExpired):
            return process.wait(POLL_S if watch is not None else end - time.monotonic())
    return None


def _end(process: subprocess.Popen[bytes]) -> None:
    """End the process, with SIGTERM first: torchrun and torchrelay then end the ranks that they have started, in any session."""
    if process.poll() is None:
        process.terminate()
        with suppress(subprocess.TimeoutExpired):
            process.wait(END_S)
    with suppress(ProcessLookupError):  # its session: what is left of it when the command itself had to be killed
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def tail(path: Path, count: int = 20) -> str:
    """Return the last lines of a file."""
    try:
        return "\n".join(path.read_text(encoding="utf-8", errors="replace").splitlines()[-count:])
    except OSError:
        return ""
