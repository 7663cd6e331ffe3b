"""Which long containers that are taken for data training changes all the same: samples that are shuffled or exchanged in place.

They are not walked into, so a new process has them as its own set-up made them. Which objects they hold is looked at where an
inner loop begins, and at some boundaries.
"""

from __future__ import annotations

import zlib
from typing import Any

from torchrelay.shim.adapters.raw_memory.list_pointers import pointers
from torchrelay.shim.capture.iteration.data_changes import is_due
from torchrelay.shim.capture.state.host_state import HostState
from torchrelay.shim.capture.values.base_types import dict_items, list_items


class ChangedBulk:
    def __init__(self) -> None:
        self.found: set[str] = set()
        """The ways to the containers that have changed, as the host state has them."""
        self._before: dict[str, tuple[int, int]] = {}
        self._loop: Any = None

    def look(self, state: HostState, boundary: int, loop: Any) -> None:
        """Look which containers have changed. `loop`: the run of the training loop that the boundary is in."""
        if loop is self._loop and not is_due(boundary):
            return
        self._loop = loop
        for obj, length, path in state.bulk:
            now = length, _held(obj)
            if self._before.setdefault(path, now) != now:
                self.found.add(path)


def _held(obj: Any) -> int:
    """Return a checksum of which objects the container holds, in their order."""
    if isinstance(obj, dict):
        items = dict_items(obj)
        return zlib.crc32(pointers([*items.values()]), zlib.crc32(pointers([*items])))
    return zlib.crc32(pointers(list_items(obj)))
