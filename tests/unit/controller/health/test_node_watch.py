from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

from torchrelay.controller.health.node_watch import NodeWatch, WatchBrokenError
from torchrelay.protocol.health import kinds as k
from torchrelay.protocol.health.node_facts import NodeFacts
from torchrelay.protocol.messages import HealthSignals

LIMIT_S = 20.0


class Client:
    """What it sees each time that it is asked to watch; then it breaks, or (at the end) sees nothing more."""

    def __init__(self, *looks: list[tuple[str, NodeFacts]]) -> None:
        self.looks = list(looks)

    async def watch(self) -> AsyncIterator[tuple[str, NodeFacts]]:
        if not self.looks:
            await asyncio.get_running_loop().create_future()
        for node, facts in self.looks.pop(0):
            yield node, facts
        raise WatchBrokenError("connection refused")


def told_by(client: Client, count: int) -> list[tuple[str, str, str, float]]:
    """The first `count` pieces of evidence."""

    async def scenario() -> list[tuple[str, str, str, float]]:
        told: list[tuple[str, str, str, float]] = []
        enough = asyncio.Event()

        def tell(node: str, message: HealthSignals) -> None:
            told.extend((node, s.kind, s.device, s.value) for s in message.signals)
            if len(told) >= count:
                enough.set()

        task = asyncio.ensure_future(NodeWatch(client, tell, lambda: ["n0"], again_s=0.01).run())
        try:
            await asyncio.wait_for(enough.wait(), LIMIT_S)
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
        return told

    return asyncio.run(scenario())


def test_what_begins_and_ends_is_told_for_its_node() -> None:
    look = [
        ("n0", NodeFacts()),
        ("n1", NodeFacts(cordoned=True)),
        ("n1", NodeFacts(cordoned=True)),
        ("n1", NodeFacts()),
    ]
    told = told_by(Client(look), 3)
    assert told[:2] == [("n1", k.NODE_CONDITION, "cordon", 1.0), ("n1", k.NODE_CONDITION, "cordon", 0.0)]


def test_a_watch_that_breaks_is_told_as_a_dead_source_and_begins_anew() -> None:
    cordoned = [("n1", NodeFacts(cordoned=True))]
    told = told_by(Client(cordoned, [*cordoned, ("n1", NodeFacts())]), 3)
    assert told[:3] == [
        ("n1", k.NODE_CONDITION, "cordon", 1.0),
        ("n0", k.SOURCE_DEAD, "cluster", 1.0),
        ("n1", k.NODE_CONDITION, "cordon", 0.0),
    ], "what is known is not told anew"
