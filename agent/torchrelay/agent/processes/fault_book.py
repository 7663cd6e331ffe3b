"""Which faults of --inject are still to come, so that a rank's next holder gets those and no other. Pure."""

from __future__ import annotations

from collections.abc import Iterable

from torchrelay.protocol.names import ENV_INJECT
from torchrelay.protocol.options.faults import parse_fault


class FaultBook:
    """Knows what was fired on this node; a rank that was held elsewhere in between is not to be asked for."""

    def __init__(self, texts: Iterable[str]) -> None:
        self._left = [parse_fault(text) for text in texts]

    def fired(self, text: str) -> None:
        """A process said that this fault is about to strike."""
        fault = next((f for f in self._left if str(f) == text), None)
        if fault is not None:
            self._left.remove(fault)

    def environment(self, rank: int) -> dict[str, str]:
        """What a process that takes this rank is told; empty without faults."""
        faults = [str(f) for f in self._left if f.rank == rank]
        return {ENV_INJECT: ";".join(faults)} if faults else {}
