"""Where the shim spends its time in a step, seen from inside the training process: functions of the engine with a clock."""

from __future__ import annotations

import builtins
import functools
import json
import statistics
import time
from collections import defaultdict
from pathlib import Path
from typing import Any

from torchrelay.shim.instrument import HOOKS

# Attribute path below the engine, and what it does, in the order of a step. Indented ones are part of the one above.
PARTS = (
    ("take_boundary", "boundary"),
    ("writer.walk", "  walk of the host state"),
    ("writer.boundary", "  journal of the boundary"),
    ("replicas.at_boundary", "  digests (at few boundaries)"),
    ("gate", "gate"),
    ("_wait_in_gate", "  wait for the other ranks"),
    ("writer.gate", "  journal of the gate"),
)


class Breakdown:
    def __init__(self) -> None:
        self._seconds: dict[str, list[tuple[float, float]]] = defaultdict(list)
        self._attached = False

    def attach(self) -> None:
        """From inside of the training loop: puts clocks into the engine. Does nothing the second time."""
        if self._attached:
            return
        self._attached = True
        engine: Any = getattr(builtins, HOOKS).tracker().listener
        for path, _ in PARTS:
            *owners, name = path.split(".")
            owner = functools.reduce(getattr, owners, engine)
            setattr(owner, name, self._timed(path, getattr(owner, name)))

    def _timed(self, path: str, function: Any) -> Any:
        seconds = self._seconds[path]

        @functools.wraps(function)
        def timed(*args: Any, **kwargs: Any) -> Any:
            start, start_cpu = time.perf_counter(), time.thread_time()
            try:
                return function(*args, **kwargs)
            finally:
                seconds.append((time.perf_counter() - start, time.thread_time() - start_cpu))

        return timed

    def write(self, path: Path) -> None:
        """By part, the median microseconds of a call: wall time, and processor time of the training thread."""
        medians = {
            label: [statistics.median(times) * 1e6 for times in zip(*self._seconds[part], strict=True)]
            for part, label in PARTS
            if self._seconds[part]
        }
        path.write_text(json.dumps(medians))
