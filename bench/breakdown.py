"""Where the shim spends its time in a step, seen from inside the training process: functions of the engine with a clock.

The times are kept by the engine, which is no state of the script's, so that the shim neither walks nor writes down what measures
it. Nor is there a statement with a loop in this file, which would make its globals a script's.
"""

from __future__ import annotations

import builtins
import functools
import json
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from torchrelay.shim.instrument.rewrite import HOOKS

# Attribute path below the engine, and what it does, in the order of a step. Indented ones are part of the one above.
PARTS = (
    ("take_boundary", "boundary"),
    ("writer.walk", "  walk of the host state"),
    ("writer.boundary", "  journal of the boundary"),
    ("replicas.at_boundary", "  digests (at few boundaries)"),
    ("updates.gate.pass_protected", "gate"),
    ("updates.gate._wait", "  wait for the other ranks"),
    ("writer.gate", "  journal of the gate"),
)


def attach() -> None:
    """Put clocks into the engine. To be called from inside the training loop; a second call does nothing."""
    engine: Any = getattr(builtins, HOOKS).tracker().listener
    if not hasattr(engine, "bench_seconds"):
        engine.bench_seconds = {path: _put_clock(engine, path) for path, _ in PARTS}


def write(path: Path) -> None:
    """Write the median microseconds of a call for each part: wall time, and processor time of the training thread."""
    seconds = getattr(builtins, HOOKS).tracker().listener.bench_seconds
    medians = {
        label: [statistics.median(times) * 1e6 for times in zip(*seconds[part], strict=True)]
        for part, label in PARTS
        if seconds[part]
    }
    path.write_text(json.dumps(medians))


def _put_clock(engine: Any, path: str) -> list[tuple[float, float]]:
    """Put a clock around one function. Return the list where the seconds of each call will be."""
    *owners, name = path.split(".")
    owner = functools.reduce(getattr, owners, engine)
    seconds: list[tuple[float, float]] = []
    setattr(owner, name, _timed(seconds, getattr(owner, name)))
    return seconds


def _timed(seconds: list[tuple[float, float]], function: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(function)
    def timed(*args: Any, **kwargs: Any) -> Any:
        start, start_cpu = time.perf_counter(), time.thread_time()
        try:
            return function(*args, **kwargs)
        finally:
            seconds.append((time.perf_counter() - start, time.thread_time() - start_cpu))

    return timed
