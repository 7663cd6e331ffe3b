"""Which changes of data a new process cannot be given: what is too large, and what a thread of the script goes on changing."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator
from typing import Any

from torchrelay.protocol.messages import Gap
from torchrelay.protocol.names import BARS
from torchrelay.shim.capture.iteration.data_changes import DataChanges, carried
from torchrelay.shim.capture.state.filled_queues import FilledQueues
from torchrelay.shim.capture.state.host_state import HostState
from torchrelay.shim.capture.state.parts import attributes
from torchrelay.shim.capture.values.by_identity import ByIdentity
from torchrelay.shim.observe.changed_bulk import ChangedBulk
from torchrelay.shim.observe.origins import NOWHERE, SourcePlace, where_made


class OwnThreads:
    """Data that training changes, and that a thread of its own was seen to work on. Between two epochs there may be none."""

    def __init__(self, queues: FilledQueues) -> None:
        self._queues = queues
        self._owners: ByIdentity[bool] = ByIdentity()

    def __len__(self) -> int:
        return len(self._owners)

    def look(self, owners: Iterable[Any]) -> None:
        """`owners`: all data that training has changed."""
        for owner in owners:
            if self._has_one(owner) or self._queues.threads.may_change(owner, carried(owner)):
                self._owners.put(owner, True)

    def have_worked_on(self, owner: Any) -> bool:
        return self._owners.get(owner) is not None

    def _has_one(self, owner: Any) -> bool:
        """Return whether a thread works on the owner that is none of those which fetch ahead: what these change is told apart."""
        held = {id(value) for value in attributes(owner).values()}
        return any(
            (id(thread) in held or getattr(getattr(thread, "_target", None), "__self__", None) is owner)
            and not self._queues.is_filler(thread)
            for thread in threading.enumerate()
        )


def gaps(state: HostState, changes: DataChanges, bulk: ChangedBulk, threads: OwnThreads) -> list[Gap]:
    """Return what the report says of the data that training has changed."""
    found = [_not_carried_gap(path, NOWHERE) for path in sorted(bulk.found)]
    for owner in changes.changed.objects():
        number = state.index.get(id(owner))
        if number is None:
            continue
        name = state.path(number)
        node = state.nodes[number]
        place = where_made(state, node.parent, node.key)
        if threads.have_worked_on(owner):
            text = (
                f"{name}: a thread of its own works on it, and it changes while training runs: no rank can be replaced"
            )
            found.append(Gap("data", BARS, text, *place))
        lost = _not_carried(state, [f"{name}.{attribute}" for attribute in carried(owner)])
        found += [_not_carried_gap(path, place) for path in lost if path not in bulk.found]
    return found


def _not_carried_gap(path: str, place: SourcePlace) -> Gap:
    text = f"{path}: training changes it, and it cannot be carried: no rank can be replaced"
    return Gap("data", BARS, text, *place)


def _not_carried(state: HostState, changed: list[str]) -> Iterator[str]:
    for path in [path for _, _, path in state.bulk] + state.unknown:
        if any(path == name or path.startswith((f"{name}.", f"{name}[", f"{name} ")) for name in changed):
            yield path
