"""Limits the memory that one job may take in a controller that has others, whatever is remembered of it."""

from __future__ import annotations

import gc
import sys
import types
from collections.abc import Iterable
from typing import Any

from torchrelay.protocol.errors import RefusedError

BUDGET_BYTES = 256 << 20
"""The memory of a job of few processes: journals of a migration have some MiB."""
BUDGET_BYTES_PER_AGENT = 512 << 10
LOOK_EVERY_BYTES = 8 << 20
"""What the job holds is counted again after so much has come from agents, or as much as was held the last time."""
_NOBODYS = (type, types.ModuleType, types.FunctionType, types.BuiltinFunctionType, types.CodeType, types.FrameType)


class MemoryShare:
    """The memory of one job. `roots`: objects of the job, from which nothing of another job can be reached."""

    def __init__(self, *roots: Any) -> None:
        self._roots = roots
        self._came_bytes = 0
        self._next_bytes = LOOK_EVERY_BYTES

    def take(self, size_bytes: int, agents: int) -> None:
        """Count a message of that size, which has been taken in. Raises RefusedError where the job holds more than its share."""
        self._came_bytes += size_bytes
        if self._came_bytes < self._next_bytes:
            return
        budget_bytes = BUDGET_BYTES + agents * BUDGET_BYTES_PER_AGENT
        held_bytes = size_of(self._roots, budget_bytes)
        self._next_bytes = max(LOOK_EVERY_BYTES, held_bytes)
        self._came_bytes = 0
        if held_bytes > budget_bytes:
            raise RefusedError(f"what its agents have said takes more than {budget_bytes >> 20} MiB in the controller")


def size_of(roots: Iterable[Any], most_bytes: int) -> int:
    """Return the bytes of all objects that can be reached from `roots`. The counting ends beyond `most_bytes`."""
    seen: set[int] = set()
    to_look = list(roots)
    total = 0
    while to_look and total <= most_bytes:
        found = to_look.pop()
        if id(found) in seen or isinstance(found, _NOBODYS):
            continue
        seen.add(id(found))
        total += sys.getsizeof(found)
        to_look += gc.get_referents(found)
    return total
