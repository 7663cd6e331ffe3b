"""Nodes as a cluster sees them: follows a client that watches them, and hands the evidence on."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable
from typing import Protocol

from torchrelay.protocol.errors import TorchrelayError
from torchrelay.protocol.health import kinds as k
from torchrelay.protocol.health.node_facts import NodeEvidence, NodeFacts
from torchrelay.protocol.messages import HealthSignal, HealthSignals

log = logging.getLogger(__name__)

SOURCE = "cluster"
AGAIN_S = 5.0
MOST_AGAIN_S = 60.0


class WatchBrokenError(TorchrelayError):
    """The cluster cannot be watched now; the text says why."""


class NodeClient(Protocol):
    """What watches a cluster."""

    def watch(self) -> AsyncIterator[tuple[str, NodeFacts]]:
        """A node of the job, as its agent names it, and its facts: first of all nodes, then whenever some change. Raises
        WatchBrokenError when it cannot go on; then it is called again.
        """


class NodeWatch:
    """`tell(node, signals)` takes what is seen, as Core.evidence does; `nodes()` names the job's nodes, for what
    is known of none.
    """

    def __init__(
        self,
        client: NodeClient,
        tell: Callable[[str, HealthSignals], None],
        nodes: Callable[[], list[str]],
        again_s: float = AGAIN_S,
    ) -> None:
        self._client, self._tell, self._nodes, self._again_s = client, tell, nodes, again_s
        self._evidence: dict[str, NodeEvidence] = {}

    async def run(self) -> None:
        """Until cancelled. What is known of nodes stays as it is while the watch is broken."""
        pause_s = self._again_s
        while True:
            try:
                async for node, facts in self._client.watch():
                    pause_s = self._again_s
                    if signals := self._evidence.setdefault(node, NodeEvidence()).update(facts):
                        self._tell(node, HealthSignals(signals))
                reason = "it ended"
            except WatchBrokenError as e:
                reason = str(e)
            log.warning("the cluster's nodes cannot be watched: %s", reason)
            for node in self._nodes():
                dead = HealthSignal(k.SOURCE_DEAD, SOURCE, detail=f"the cluster's nodes cannot be watched: {reason}")
                self._tell(node, HealthSignals((dead,)))
            await asyncio.sleep(pause_s)
            pause_s = min(pause_s * 2, MOST_AGAIN_S)
