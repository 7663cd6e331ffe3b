"""Whether another process could make a data loader that training has made."""

from __future__ import annotations

from typing import Any

from torchrelay.shim.capture.handlers.data import form_of
from torchrelay.shim.capture.records.encode import decode, is_lost
from torchrelay.shim.capture.state.host_state import HostState
from torchrelay.shim.capture.values.kinds import Kind


def can_be_made(state: HostState, loader: Any) -> bool:
    """Return whether what is written of a loader, and of the data sets below it that training has made, is all of them.

    `state`: encoded.
    """
    number = state.index.get(id(loader))
    if number is None:
        return False
    queue = [number]
    for number in queue:
        node, written = state.nodes[number], decode([state.written[number]])[0]
        form = form_of(written)
        if not form.is_made:
            continue
        parts = [*written.content.values(), *(form.arguments.values() if node.kind is Kind.LOADER else ())]
        if written.cls is None or form.lacking or any(map(is_lost, parts)):
            return False
        below = (state.index.get(id(value)) for _, value in node.edges)
        data = {n for n in below if n is not None and state.nodes[n].kind is Kind.DATASET}
        queue += data.difference(queue)
    return True
