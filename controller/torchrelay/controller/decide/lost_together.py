"""Which nodes of a job are lost together? Pure."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass

MACHINE, POD = "machine", "pod"


@dataclass(frozen=True)
class Places:
    """`kind`: what is lost as a whole; `of`: node -> the one that it is lost with."""

    kind: str
    of: Mapping[str, str]

    def apart(self, node: str, other: str) -> bool:
        """Return whether `other` outlives the loss of `node`. Both may be nodes that have left the job, or empty: then not."""
        return bool(other) and self.of.get(node, node) != self.of.get(other, other)


def places(nodes: Collection[str], machines: Mapping[str, str]) -> Places:
    """`machines`: node -> its machine, where nodes are pods. Pods that all share one machine can only be lost one by one."""
    on = {node: machines.get(node, node) for node in nodes}
    if len(on) > 1 and len(set(on.values())) == 1:
        return Places(POD, {node: node for node in nodes})
    return Places(MACHINE, on)
