"""Whether another process could make a data loader that training has made."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from torchrelay.shim.capture.handlers.data import form_of
from torchrelay.shim.capture.records.encode import decode, is_lost
from torchrelay.shim.capture.state.host_state import HostState
from torchrelay.shim.capture.values.kinds import Kind

_LOOKED_INTO = (Kind.DATASET, Kind.ATTRS)
_MOST_NODES = 32
"""Samplers may lead to anything; what they draw from is near."""


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
    """`queue`: has the loader's node; those that are read, too, are added: of data sets, and of samplers that lead to some."""
    for number in queue:
        node = state.nodes[number]
        below = {n for n in (state.index.get(id(value)) for _, value in node.edges) if n is not None}
        further = sorted(n for n in below if state.nodes[n].kind in _LOOKED_INTO and n not in queue)
        if node.kind is Kind.ATTRS:
            queue += further[: max(0, _MOST_NODES - len(queue))]
            continue
        written = decode([state.written[number]])[0]
        form = form_of(written)
        if not form.is_made:
            continue
        parts = [*written.content.values(), *(form.arguments.values() if node.kind is Kind.LOADER else ())]
        if written.cls is None or form.lacking or any(map(is_lost, parts)):
            return False
        queue += further
    return True
