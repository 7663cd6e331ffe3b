"""Keeps which faults of --inject are still to come, so that a rank's next process gets those and no other. Pure."""

from __future__ import annotations

from collections.abc import Iterable

from torchrelay.protocol.names import ENV_INJECT
from torchrelay.protocol.options.faults import parse_fault


class FaultBook:
    """Knows the faults that struck on this node. Do not ask it for a rank that was held on another node in between."""

    def __init__(self, texts: Iterable[str]) -> None:
        self._left = [parse_fault(text) for text in texts]

    def fired(self, text: str) -> None:
        """Take note that this fault is about to strike, as a process has said."""
        fault = next((f for f in self._left if str(f) == text), None)
        if fault is not None:
            self._left.remove(fault)

    def environment(self, rank: int) -> dict[str, str]:
        """Return the variables for a process that takes this rank; empty without faults."""
        faults = [str(f) for f in self._left if f.rank == rank]
        return {ENV_INJECT: ";".join(faults)} if faults else {}
