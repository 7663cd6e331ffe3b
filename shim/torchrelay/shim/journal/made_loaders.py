"""Whether another process could make a data loader that training has made."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from torchrelay.shim.capture.handlers.data import form_of
from torchrelay.shim.capture.records.encode import decode, is_lost
from torchrelay.shim.capture.state.host_state import HostState
from torchrelay.shim.capture.values.kinds import Kind


@dataclass
class MadeLoaders:
    """Verdicts on loaders, by node, with what was written of them and of their data sets: they hold until that is another thing."""

    _known: dict[int, tuple[dict[int, bytes], bool]] = field(default_factory=dict)

    def can_be_made(self, state: HostState, loader: Any) -> bool:
        """Return whether what is written of a loader, and of the data sets below it that training has made, is all of them.

        `state`: encoded.
        """
        number = state.index.get(id(loader))
        if number is None:
            return False
        read, verdict = self._known.get(number, ({}, False))
        if not read or any(state.written[node] is not data for node, data in read.items()):
            queue = [number]
            verdict = _is_written_whole(state, queue)
            self._known[number] = {node: state.written[node] for node in queue}, verdict
        return verdict


def _is_written_whole(state: HostState, queue: list[int]) -> bool:
    """`queue`: has the loader's node; those of data sets that are read, too, are added."""
    for number in queue:
        node = state.nodes[number]
        written = decode([state.written[number]])[0]
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
