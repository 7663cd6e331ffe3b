"""Which nodes of a job are lost together? Pure."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass

MACHINE = "machine"
POD = "pod"


@dataclass(frozen=True)
class LostTogether:
    """`kind`: what is lost as a whole, a machine or a pod; `of`: node -> the name of that machine or pod."""

    kind: str
    of: Mapping[str, str]

    def apart(self, node: str, other: str) -> bool:
        """Return whether `other` outlives the loss of `node`; False where there is no other (an empty name)."""
        return bool(other) and self.of.get(node, node) != self.of.get(other, other)


def lost_together(nodes: Collection[str], machines: Mapping[str, str]) -> LostTogether:
    """Return with what each node is lost. `machines`: node -> its machine, where nodes are pods.

    Pods that all share one machine are lost one by one: with the machine nothing is left of the job.
    """
    on = {node: machines.get(node, node) for node in nodes}
    if len(on) > 1 and len(set(on.values())) == 1:
        return LostTogether(POD, {node: node for node in nodes})
    return LostTogether(MACHINE, on)
