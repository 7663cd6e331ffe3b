"""The agent in a pod answers Prometheus, and takes no harm where it cannot."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import urllib.request
from pathlib import Path

from support.pod_node_world import World
from support.ports import free_port


def ask(port: int) -> str:
    with contextlib.suppress(OSError), urllib.request.urlopen(f"http://127.0.0.1:{port}/", timeout=10) as answer:
        return str(answer.read().decode())
    return ""


def test_the_agent_answers_at_its_port_and_counts_the_processes_of_the_pod(tmp_path: Path) -> None:
    async def test() -> None:
        port = free_port()
        world = World(tmp_path, port)
        try:
            await world.shim()
            await world.until(lambda: world.node._living())
            told = await asyncio.to_thread(ask, port)
            assert "torchrelay_agent_processes 1.0" in told
            assert "torchrelay_agent_connected 0.0" in told
        finally:
            await world.close()
        assert await asyncio.to_thread(ask, port) == ""

    asyncio.run(test())


def test_a_port_that_is_taken_keeps_no_pod_from_training(tmp_path: Path) -> None:
    async def test() -> None:
        with socket.create_server(("127.0.0.1", 0)) as other:
            world = World(tmp_path, other.getsockname()[1])
            try:
                await world.shim()
                await world.until(lambda: world.node._living())
            finally:
                await world.close()

    asyncio.run(test())
