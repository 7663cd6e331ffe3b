"""Attacks on the webhook, the metrics and the dashboard of a cluster: each goes on to answer, and holds nothing afterwards."""

from __future__ import annotations

import asyncio
import json
import time
from pathlib import Path

import httpx2
from attack import strangers
from attack.cluster import MOST_DESCRIPTORS, SETTLE_S, Extent
from attack.draw import Draw
from attack.process import Controlled
from attack.tally import Tally

MOST_GROWTH_BYTES = 32 << 20
ANSWER_S = 20.0
"""On a busy machine, with strangers beside."""
REVIEW = "admission review that makes no sense"
ASKS = {
    "webhook": "https://127.0.0.1:{}/readyz",
    "metrics": "http://127.0.0.1:{}/metrics",
    "dashboard": "http://127.0.0.1:{}/",
}
ANSWERS_MEANWHILE = ("webhook", "dashboard")
"""Prometheus alone asks for metrics, and comes again: they answer once the strangers are gone, or have had their time."""


class SidePorts:
    def __init__(self, sides: Controlled, extent: Extent, seed: int, tally: Tally) -> None:
        self._sides, self._extent, self._tally = sides, extent, tally
        self._draws = {name: Draw(f"{seed}/{name}") for name in sides.ports}

    async def run(self) -> None:
        for name in self._sides.ports:
            await self._answers(name)
        await self._round(40)
        before = await self._sides.ask("state")
        await self._round(self._extent.connections // 2)
        after = await self._settled(before["descriptors"] + MOST_DESCRIPTORS)
        self._judge(before, after)

    async def _round(self, connections: int) -> None:
        await asyncio.gather(*(self._at(name, port, connections) for name, port in self._sides.ports.items()))

    async def _at(self, name: str, port: int, connections: int) -> None:
        draw = self._draws[name]
        await strangers.garbage(port, draw, self._tally, connections)
        await strangers.half_open(
            port, draw, self._tally, connections, lambda: asyncio.ensure_future(self._meanwhile(name))
        )
        if name == "webhook":
            await strangers.bad_tls(port, self._tally, connections)
            await self._reviews(port, draw, connections)
        await self._answers(name)

    async def _meanwhile(self, name: str) -> None:
        if name in ANSWERS_MEANWHILE:
            await self._answers(name)

    async def _answers(self, name: str) -> None:
        """To somebody who asks as it is meant."""
        until_s = time.monotonic() + ANSWER_S
        problem = ""
        async with httpx2.AsyncClient(verify=False, timeout=ANSWER_S) as client:
            while time.monotonic() < until_s:
                try:
                    reply = await client.get(ASKS[name].format(self._sides.ports[name]))
                except httpx2.HTTPError as e:
                    problem = f"{type(e).__name__}: {e}"
                    await asyncio.sleep(0.1)  # it is just being closed
                    continue
                if reply.status_code == httpx2.codes.OK:
                    return
                problem = f"{reply.status_code}: {reply.text[:200]}"
                break
        self._tally.fail(f"{name} does not answer: {problem}")

    async def _reviews(self, port: int, draw: Draw, count: int) -> None:
        """What no API server sends: each is answered, and none by an error of ours."""
        deep = b"[" * 50_000
        bodies = [b"", b"{}", b"null", deep, b"\xff" * 1000, json.dumps({"request": {"uid": 7, "object": 1}}).encode()]
        bodies += [json.dumps({"request": {"uid": "u", "object": odd_pod(draw)}}).encode() for _ in range(20)]
        async with httpx2.AsyncClient(verify=False, timeout=ANSWER_S) as client:
            for number in range(count):
                self._tally.sent(REVIEW)
                body = bodies[number] if number < len(bodies) else draw.damaged(bodies[number % len(bodies)])
                try:
                    reply = await client.post(f"https://127.0.0.1:{port}/mutate", content=body)
                except httpx2.HTTPError as e:
                    self._tally.fail(f"a review was not answered: {type(e).__name__}: {e}: {body[:100]!r}")
                    continue
                self._tally.refuse(REVIEW, f"HTTP status {reply.status_code}")
                if reply.status_code >= httpx2.codes.INTERNAL_SERVER_ERROR:
                    self._tally.fail(f"HTTP status {reply.status_code} for {body[:200]!r}: {reply.text[:200]}")

    async def _settled(self, descriptors: int) -> dict[str, int]:
        until_s = time.monotonic() + SETTLE_S
        while True:
            state: dict[str, int] = await self._sides.ask("state")
            if state["descriptors"] <= descriptors or time.monotonic() > until_s:
                return state
            await asyncio.sleep(0.2)

    def _judge(self, before: dict[str, int], after: dict[str, int]) -> None:
        grown = after["bytes"] - before["bytes"]
        print(
            f"webhook, metrics, dashboard: {before['bytes'] >> 10} KiB before, {after['bytes'] >> 10} KiB after; descriptors "
            f"{before['descriptors']} and {after['descriptors']}",
            flush=True,
        )
        if after["ended"]:
            self._tally.fail(f"a server has ended: {after['ended']}")
        if grown > MOST_GROWTH_BYTES:
            self._tally.fail(f"webhook, metrics and dashboard hold {grown >> 20} MiB more than before")
        if after["descriptors"] > before["descriptors"] + MOST_DESCRIPTORS:
            self._tally.fail(f"{before['descriptors']} descriptors of theirs have become {after['descriptors']}")


def odd_pod(draw: Draw) -> object:
    """Annotated, with a field that is of no sense."""
    odd = draw.chance.choice((None, 7, "x" * 70_000, [], {}, [None], {"a": [1]}, -1.5, True))
    pod: dict[str, object] = {
        "kind": "Pod",
        "metadata": {"name": "p", "annotations": {"torchrelay.dev/inject": "true"}},
        "spec": {"containers": [{"name": "main", "image": "x"}]},
    }
    place = draw.chance.choice(("metadata", "spec", "kind", "annotations", "containers", "container"))
    match place:
        case "annotations":
            pod["metadata"] = {"name": "p", "annotations": odd}
        case "containers":
            pod["spec"] = {"containers": odd}
        case "container":
            pod["spec"] = {"containers": [odd, {"name": odd, "env": odd, "volumeMounts": odd}]}
        case _:
            pod[place] = odd
    return pod


async def attack_sides(folder: Path, extent: Extent, seed: int, tally: Tally) -> None:
    sides = await Controlled.start(folder / "sides.log", "attack.sides")
    try:
        await SidePorts(sides, extent, seed, tally).run()
    finally:
        await sides.close()
