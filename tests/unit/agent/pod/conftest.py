"""What the tests of the agent in a pod share."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest
from support.pod_node_world import World


@pytest.fixture
def in_world(tmp_path: Path) -> Callable[[Callable[[World], Coroutine[Any, Any, None]]], None]:
    def run(test: Callable[[World], Coroutine[Any, Any, None]]) -> None:
        async def go() -> None:
            world = World(tmp_path)
            try:
                await test(world)
            finally:
                await world.close()

        asyncio.run(go())

    return run
