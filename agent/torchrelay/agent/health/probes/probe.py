"""`python -m torchrelay.agent.health.probes.probe SOURCE OPTIONS`: one source of evidence, in a process of its own.

A call into a driver may never return, or take the process with it: neither must happen to the agent. Each line on stdout
is a JSON object: `devices` (once), `signals` (a list, mostly empty: it is also the sign of life), `covers` (what another source
need not read), or `absent` (why there is nothing to read; the process ends). A line on stdin is what to leave to another one.
"""

from __future__ import annotations

import ctypes
import dataclasses
import importlib
import json
import os
import signal
import sys
import time
from typing import Any

from torchrelay.agent.health.probes.source import AbsentError, Covered, Covering, FactSource, Yielding
from torchrelay.protocol.messages import HealthSignal
from torchrelay.protocol.transport.readable import is_readable

POLL_S = 0.9
"""With this pause, what only a poll shows is known within a second."""
SOURCES = {
    "nvidia": "torchrelay.agent.health.gpus.nvidia",
    "amd": "torchrelay.agent.health.gpus.amd",
    "dcgm": "torchrelay.agent.health.gpus.dcgm",
    "network": "torchrelay.agent.health.machine.network",
}
_PR_SET_PDEATHSIG = 1


def main(name: str, options: dict[str, Any]) -> int:
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() == 1 and options.get("parent") != 1:
        return 0  # it died before the line above
    try:
        source: FactSource = importlib.import_module(SOURCES[name]).open_source(options)
    except AbsentError as e:
        _say({"absent": str(e)})
        return 0
    _say({"devices": source.devices()})
    poll_s = float(options.get("poll_s", POLL_S))
    due_s = time.monotonic()
    orders = Orders()
    while True:
        if isinstance(source, Yielding):
            for covered in orders.read():
                source.leave(covered)
        _tell(source.poll())
        if isinstance(source, Covering):
            _say({"covers": source.covers()})
        due_s = max(due_s + poll_s, time.monotonic())
        while (left_s := due_s - time.monotonic()) > 0:
            if signals := source.wait(left_s):
                _tell(signals)


class Orders:
    """Reads lines from a file without waiting for them."""

    def __init__(self, file: int = 0) -> None:
        self._file = file
        self._rest = b""
        self._open = True

    def read(self) -> list[Covered]:
        """Return the whole lines that have come since the last call, parsed."""
        found: list[Covered] = []
        while self._open and is_readable(self._file):
            data = os.read(self._file, 1 << 16)
            self._open = bool(data)
            *lines, self._rest = (self._rest + data).split(b"\n")
            found += map(json.loads, lines)
        return found


def _tell(signals: list[HealthSignal]) -> None:
    _say({"signals": [dataclasses.asdict(s) for s in signals]})


def _say(line: dict[str, Any]) -> None:
    sys.stdout.write(json.dumps(line) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], json.loads(sys.argv[2])))
