"""Which changes of data sets a new process cannot be given: what is too large, and what a thread of the script goes on changing."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

from torchrelay.protocol.messages import Gap
from torchrelay.protocol.names import BARS
from torchrelay.shim.capture.iteration.data_changes import DataChanges, carried
from torchrelay.shim.capture.state.host_state import HostState
from torchrelay.shim.capture.state.parts import attributes
from torchrelay.shim.observe.origins import where_made


def gaps(state: HostState, changes: DataChanges) -> list[Gap]:
    """Return what the report says of the data sets that training has changed."""
    found = []
    for owner in changes.changed.values():
        number = state.index.get(id(owner))
        if number is None:
            continue
        name, node = state.path(number), state.nodes[number]
        place = where_made(state, node.parent, node.key)
        if _has_a_thread(owner):
            text = (
                f"{name}: a thread of its own works on it, and it changes while training runs: no rank can be replaced"
            )
            found.append(Gap("data", BARS, text, *place))
        for path in _too_large(state, [f"{name}.{attribute}" for attribute in carried(owner)]):
            text = f"{path}: training changes it, and it is too large to be carried: no rank can be replaced"
            found.append(Gap("data", BARS, text, *place))
    return found


def _too_large(state: HostState, changed: list[str]) -> Iterator[str]:
    for path in [path for _, _, path in state.bulk] + state.unknown:
        if any(path == name or path.startswith((f"{name}.", f"{name}[", f"{name} ")) for name in changed):
            yield path


def _has_a_thread(owner: Any) -> bool:
    held = {id(value) for value in attributes(owner).values()}
    return any(
        id(thread) in held or getattr(getattr(thread, "_target", None), "__self__", None) is owner
        for thread in threading.enumerate()
    )
