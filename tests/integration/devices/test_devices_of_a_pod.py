"""The agent's eyes in a pod, on a fake machine: NVML shows all GPUs of the node, and the pod has one of them."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from support.fake_machines import fake_machine

from torchrelay.agent.fake_machine.machine import FakeMachine
from torchrelay.agent.pod.monitor import PodMonitor
from torchrelay.protocol.health import kinds as k
from torchrelay.protocol.messages import HealthSignals, HealthSources
from torchrelay.protocol.names import WorkerId

pytestmark = pytest.mark.core

WORKER = WorkerId("train-1:0a1b2c3d.1")
LIMIT_S = 60.0


def gpu(number: int) -> str:
    return f"GPU-fa4e0000-0000-0000-0000-{number:012d}"


class Told:
    def __init__(self) -> None:
        self.messages: list[Any] = []
        self._more = asyncio.Event()

    def send(self, message: Any) -> None:
        self.messages.append(message)
        self._more.set()

    @property
    def devices(self) -> list[str]:
        said = [m for m in self.messages if isinstance(m, HealthSources)]
        return said[-1].devices.get(WORKER, "").split() if said else []

    @property
    def xids(self) -> list[tuple[str, int]]:
        return [
            (s.device, s.code)
            for m in self.messages
            if isinstance(m, HealthSignals)
            for s in m.signals
            if s.kind == k.XID
        ]

    async def until(self, true: Any) -> None:
        while not true():
            self._more.clear()
            await self._more.wait()


def watch(tmp_path: Path, scenario: Any, gpus: str, local_ranks: dict[WorkerId, int] | None = None) -> None:
    async def run() -> None:
        machine, told = fake_machine(tmp_path / "machine"), Told()
        own = {"TORCHRELAY_GPUS": "nvidia.com/gpu=1", "TORCHRELAY_MACHINE": str(machine.root)}
        eyes = PodMonitor("127.0.0.1", own, told.send)
        task = asyncio.ensure_future(eyes.run())
        try:
            for worker, local_rank in (local_ranks or {WORKER: 0}).items():
                eyes.uses(worker, gpus, local_rank)
            await scenario(machine, told)
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    asyncio.run(asyncio.wait_for(run(), LIMIT_S))


def test_only_what_happens_to_the_pod_s_own_gpu_is_told(tmp_path: Path) -> None:
    async def scenario(machine: FakeMachine, told: Told) -> None:
        await told.until(lambda: gpu(1) in told.devices)
        assert gpu(0) not in told.devices
        said = [m for m in told.messages if isinstance(m, HealthSources)]
        assert said[-1].gpus == {WORKER: gpu(1)}
        machine.xid(0, 79, kernel=False)
        machine.xid(1, 94, kernel=False)
        await told.until(lambda: told.xids)
        assert told.xids == [(gpu(1), 94)]

    watch(tmp_path, scenario, gpu(1))


def test_of_several_processes_each_one_uses_the_gpu_of_its_local_rank(tmp_path: Path) -> None:
    neighbour = WorkerId("train-1:0a1b2c3d.2")

    async def scenario(machine: FakeMachine, told: Told) -> None:
        def devices() -> dict[str, str]:
            said = [m for m in told.messages if isinstance(m, HealthSources)]
            return dict(said[-1].devices) if said else {}

        await told.until(lambda: gpu(0) in devices().get(neighbour, ""))
        assert gpu(1) in told.devices
        assert gpu(0) not in told.devices
        assert gpu(1) not in devices()[neighbour]

    watch(tmp_path, scenario, f"{gpu(0)},{gpu(1)}", {neighbour: 0, WORKER: 1})


def test_without_a_gpu_nothing_is_started() -> None:
    async def run() -> None:
        eyes = PodMonitor("127.0.0.1", {}, lambda message: None)
        eyes.uses(WORKER, gpu(0))
        await asyncio.wait_for(eyes.run(), 60.0)

    asyncio.run(run())


def test_where_it_is_not_known_which_gpus_are_the_pod_s_nothing_is_told(tmp_path: Path) -> None:
    async def scenario(machine: FakeMachine, told: Told) -> None:
        await told.until(
            lambda: any(m.sources.get("nvidia") == "ok" for m in told.messages if isinstance(m, HealthSources))
        )
        assert set(told.devices) <= {"nvidia-driver"}
        machine.xid(0, 79, kernel=False)
        machine.set(0, "temperature", 88)
        await asyncio.sleep(2.0)  # what is not told cannot be waited for
        assert told.xids == []

    watch(tmp_path, scenario, "")
