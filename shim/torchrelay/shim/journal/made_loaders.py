"""Whether another process could make a data loader that training has made."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torchrelay.shim.capture.records.encode import decode, is_lost
from torchrelay.shim.capture.state.host_state import HostState
from torchrelay.shim.capture.values.kinds import Kind


def can_be_made(state: HostState, loader: Any, is_made: Callable[[Any], bool]) -> bool:
    """Return whether what is written of a loader, and of the data sets below it that training has made, is all of them.

    `state`: encoded. `is_made(obj)`: whether training has made that data set.
    """
    number = state.index.get(id(loader))
    if number is None:
        return False
    queue = [number]
    for number in queue:
        node, written = state.nodes[number], decode([state.written[number]])[0]
        is_loader = node.kind is Kind.LOADER
        if written.cls is None or (written.extra and not is_loader):
            return False
        if any(map(is_lost, (written.extra if is_loader else written.content).values())):
            return False
        below = (state.index.get(id(value)) for _, value in node.edges)
        data = {
            n for n in below if n is not None and state.nodes[n].kind is Kind.DATASET and is_made(state.nodes[n].obj)
        }
        queue += data.difference(queue)
    return True
