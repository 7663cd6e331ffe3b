from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path

from torchrelay.controller.health.policy_watch import PolicyWatch
from torchrelay.protocol.health.policy import HealthPolicy

ROW = "rules:\n  one: {signal: xid, verdict: %s, why: why, source: this test}\n"
LIMIT_S = 30.0


class Taken:
    """Policies as verdicts of their only row; complaints as texts."""

    def __init__(self) -> None:
        self.found: asyncio.Queue[str] = asyncio.Queue()

    def take(self, policy: HealthPolicy) -> None:
        self.found.put_nowait(policy.rules[0].verdict + (", observed" if policy.observe else ""))

    def log(self, level: str, text: str) -> None:
        if level == "warning":
            self.found.put_nowait(text)


def watched(path: Path, scenario: Callable[[Taken], Awaitable[None]], observe: bool = False) -> None:
    async def run() -> None:
        taken = Taken()
        with PolicyWatch(path, observe, taken.take, taken.log):
            await asyncio.wait_for(scenario(taken), LIMIT_S)

    asyncio.run(run())


def test_a_changed_policy_counts_and_one_with_a_mistake_does_not(tmp_path: Path) -> None:
    path = tmp_path / "policy.yaml"
    path.write_text(ROW % "watch")

    def write(text: str) -> None:
        new = tmp_path / "new"
        new.write_text(text)
        new.replace(path)

    async def scenario(taken: Taken) -> None:
        write(ROW % "replace")
        assert await taken.found.get() == "replace"
        write(ROW % "explode")
        assert "verdict is 'explode'" in await taken.found.get()
        (tmp_path / "neighbour").write_text("nothing to do with it")
        write(ROW % "stop")
        assert await taken.found.get() == "stop"

    watched(path, scenario)


def test_a_config_map_that_is_exchanged_by_its_links_is_noticed_and_observe_stays(tmp_path: Path) -> None:
    for name, verdict in (("..1", "watch"), ("..2", "migrate")):
        (tmp_path / name).mkdir()
        (tmp_path / name / "policy.yaml").write_text(ROW % verdict)
    (tmp_path / "..data").symlink_to("..1")
    path = tmp_path / "policy.yaml"
    path.symlink_to("..data/policy.yaml")

    async def scenario(taken: Taken) -> None:
        (tmp_path / "..new").symlink_to("..2")
        (tmp_path / "..new").rename(tmp_path / "..data")
        assert await taken.found.get() == "migrate, observed"

    watched(path, scenario, observe=True)
