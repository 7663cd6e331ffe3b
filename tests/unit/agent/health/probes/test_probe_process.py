from __future__ import annotations

import asyncio
import os
from pathlib import Path

import pytest

from torchrelay.agent.fake_machine.machine import COUNTERS
from torchrelay.agent.health.probes.probe_process import OK, ProbeProcess

LIMIT_S = 60.0


@pytest.fixture
def port(tmp_path: Path) -> Path:
    """One whose second counter is not read before somebody writes it."""
    port = tmp_path / "class" / "infiniband" / "mlx5_0" / "ports" / "1"
    for name in COUNTERS:
        (port / name).parent.mkdir(parents=True, exist_ok=True)
        (port / name).write_text("0\n")
    (port / "state").write_text("4: ACTIVE\n")
    (port / "phys_state").write_text("5: LinkUp\n")
    (port / COUNTERS[1]).unlink()
    os.mkfifo(port / COUNTERS[1])
    return port


def test_a_source_is_ok_once_its_first_reading_is_there(port: Path, tmp_path: Path) -> None:
    async def scenario() -> None:
        found, ready, states = asyncio.Event(), asyncio.Event(), list[str]()

        def state(_name: str, text: str) -> None:
            states.append(text)
            if text == OK:
                ready.set()

        probe = ProbeProcess("network", {"sys": str(tmp_path)}, lambda _: None, lambda _: found.set(), state, LIMIT_S)
        task = asyncio.ensure_future(probe.run())
        try:
            await found.wait()
            assert states == ["starting"]
            with (port / COUNTERS[1]).open("w") as counter:
                counter.write("0\n")
            await ready.wait()
            assert states == ["starting", OK]
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    asyncio.run(asyncio.wait_for(scenario(), LIMIT_S))
