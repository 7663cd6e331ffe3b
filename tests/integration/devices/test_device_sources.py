"""The sources on a fake machine: nvidia-ml-py itself over a driver library in C, files of sysfs, a kernel log."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import psutil
import pytest
from support.fake_machines import fake_machine

from torchrelay.agent.fake_machine.machine import FakeMachine
from torchrelay.agent.health import monitor as eyes_module
from torchrelay.agent.health.monitor import KERNEL_LOG, MachineMonitor
from torchrelay.agent.health.probes import probe_process
from torchrelay.agent.health.probes.places import WatchedPlaces
from torchrelay.protocol.health import kinds as k
from torchrelay.protocol.messages import HealthSignal, HealthSignals, HealthSources
from torchrelay.protocol.names import WorkerId

pytestmark = pytest.mark.core

WORKERS = [WorkerId(w) for w in ("n0.w0", "n0.w1", "n0.s0")]
LIMIT_S = 60.0


class Told:
    """What the eyes have told, and a way to wait for more."""

    def __init__(self) -> None:
        self.signals: list[HealthSignal] = []
        self.sources: list[HealthSources] = []
        self._more = asyncio.Event()

    def send(self, message: Any) -> None:
        if isinstance(message, HealthSignals):
            self.signals += message.signals
        else:
            self.sources.append(message)
        self.wake()

    def wake(self) -> None:
        self._more.set()

    async def until(self, condition: Callable[[], Any]) -> Any:
        while not (found := condition()):
            self._more.clear()
            await self._more.wait()
        return found

    async def first(self, kind: str, **wanted: Any) -> HealthSignal:
        def found() -> list[HealthSignal]:
            return [s for s in self.signals if s.kind == kind and all(getattr(s, n) == v for n, v in wanted.items())]

        signals: list[HealthSignal] = await self.until(found)
        return signals[0]

    async def state(self, source: str, begins: str) -> None:
        await self.until(lambda: self.sources and self.sources[-1].sources.get(source, "").startswith(begins))


@asynccontextmanager
async def watching(machine: FakeMachine, hang_s: float = 5.0) -> AsyncIterator[tuple[MachineMonitor, Told]]:
    told = Told()
    eyes = MachineMonitor(WatchedPlaces(str(machine.root)), WORKERS, {}, told.send, {4711: WORKERS[1]}.get, hang_s)
    task = asyncio.ensure_future(eyes.run())
    try:
        for source in ("nvidia", "network"):
            await told.state(source, "ok")
        yield eyes, told
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


def on(tmp_path: Path, scenario: Callable[[FakeMachine], Awaitable[None]]) -> None:
    asyncio.run(asyncio.wait_for(scenario(fake_machine(tmp_path / "machine")), LIMIT_S))


def gpu(number: int) -> str:
    return f"GPU-fa4e0000-0000-0000-0000-{number:012d}"


def test_every_worker_has_its_gpu_and_the_port_beside_it(tmp_path: Path) -> None:
    async def scenario(machine: FakeMachine) -> None:
        async with watching(machine) as (eyes, told):
            await told.until(lambda: "mlx5_0/1" in told.sources[-1].devices["n0.w0"])
            assert told.sources[-1].devices["n0.w0"].split() == ["nvidia-driver", gpu(0), "mlx5_0/1"]
            assert told.sources[-1].devices["n0.s0"].split() == ["nvidia-driver"]
            assert eyes.gpu_index("n0.w1") == 1
            assert told.sources[-1].sources[KERNEL_LOG] == "ok"

    on(tmp_path, scenario)


def test_gpus_of_the_job_that_no_worker_has_used_are_told_until_one_uses_them(tmp_path: Path) -> None:
    """Where nobody has said which GPUs are the job's, another job may use them."""

    async def scenario(machine: FakeMachine) -> None:
        async with watching(machine) as (eyes, told):
            eyes.use(WORKERS[:1], None)
            assert told.sources[-1].free == ()
            eyes.use(WORKERS[:1], f"{gpu(0)},{gpu(1)}")
            assert told.sources[-1].free == (gpu(1),)
            eyes.takes_place(WorkerId("n0.r0"), gpu(1))
            assert told.sources[-1].free == ()
            assert gpu(1) in told.sources[-1].devices["n0.r0"]

    on(tmp_path, scenario)


def test_an_xid_of_driver_and_kernel_log_is_told_once_with_the_details_of_the_line(tmp_path: Path) -> None:
    async def scenario(machine: FakeMachine) -> None:
        async with watching(machine) as (_, told):
            machine.xid(1, 74, "NVLink: fatal error detected on link 2(0x10000, 0x0, 0x0, 0x0, 0x0, 0x0, 0x0)")
            machine.xid(0, 79, kernel=False)
            await told.first(k.XID, code=79, device=gpu(0))
            machine.xid(0, 31)
            await told.first(k.XID, code=31)
            of_74 = [s for s in told.signals if s.code == 74]
            assert [(s.device, s.detail[:24]) for s in of_74] == [(gpu(1), "NVLink: fatal error dete")]

    on(tmp_path, scenario)


def test_readings_that_move_are_told(tmp_path: Path) -> None:
    async def scenario(machine: FakeMachine) -> None:
        machine.set(0, "ecc-corrected", 100)
        machine.set(0, "recovery-action", 0)
        async with watching(machine) as (_, told):
            await told.first(k.RECOVERY_ACTION, code=0)
            machine.add(0, "ecc-corrected", 2)
            machine.set(0, "temperature", 88)
            machine.set(1, "remap-pending", 1)
            machine.set(1, "throttle", 1)
            machine.set(1, "pcie-width", 8)
            machine.set(0, "recovery-action", 4)
            assert (await told.first(k.ECC_CORRECTED)).value == 2.0
            assert (await told.first(k.TEMPERATURE_MARGIN, device=gpu(0))).value == 2.0
            assert (await told.first(k.REMAP_PENDING)).device == gpu(1)
            assert (await told.first(k.HW_SLOWDOWN)).device == gpu(1)
            machine.set(1, "ecc-lifetime", 3)
            machine.set(1, "retired-pages", 60)
            assert (await told.first(k.PCIE_WIDTH)).value == 0.5
            assert (await told.first(k.ECC_LIFETIME)).value == 3.0
            assert (await told.first(k.RETIRED_PAGES)).value == 60.0
            await told.first(k.RECOVERY_ACTION, code=4)

    on(tmp_path, scenario)


def test_what_is_written_about_the_machine_itself_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(eyes_module, "NOTICES_S", 0.1)

    async def scenario(machine: FakeMachine) -> None:
        machine.write("proc/pressure/cpu", "some avg10=0.00 avg60=0.00 avg300=0.00 total=0\n")
        async with watching(machine) as (_, told):
            machine.write("proc/pressure/cpu", "some avg10=0.00 avg60=0.00 avg300=0.00 total=900000000\n")
            machine.write("notice", "new fan\n")
            notice = await told.first(k.NODE_CONDITION, value=1.0)
            assert (notice.device, notice.detail) == ("notice", "notice (new fan)")
            machine.write("notice", "")
            await told.first(k.NODE_CONDITION, value=0.0)
            assert (await told.first(k.HOST_CPU)).value == 1.0

    on(tmp_path, scenario)


def test_a_lost_device_is_told_once_and_the_others_are_read_on(tmp_path: Path) -> None:
    async def scenario(machine: FakeMachine) -> None:
        async with watching(machine) as (_, told):
            machine.set(0, "lost", 1)
            await told.first(k.GPU_LOST, device=gpu(0))
            machine.set(1, "remap-failed", 1)
            await told.first(k.REMAP_FAILED, device=gpu(1))
            assert [s.kind for s in told.signals].count(k.GPU_LOST) == 1

    on(tmp_path, scenario)


def test_nvlinks_that_go_down_and_a_lost_device_that_is_back_are_noticed(tmp_path: Path) -> None:
    async def scenario(machine: FakeMachine) -> None:
        machine.set(0, "nvlinks", 4)
        async with watching(machine) as (_, told):
            machine.set(1, "lost", 1)
            await told.first(k.GPU_LOST, device=gpu(1))
            machine.set(1, "lost", 0)
            machine.set(1, "retired-pending", 1)
            machine.set(0, "nvlinks-down", 1)
            assert (await told.first(k.NVLINK_DOWN)).value == 1.0
            await told.first(k.RETIRED_PENDING, device=gpu(1))
            machine.set(1, "lost", 1)
            await told.until(lambda: [s.kind for s in told.signals].count(k.GPU_LOST) == 2)

    on(tmp_path, scenario)


def test_a_driver_that_hangs_is_a_signal_and_one_that_is_back_another(tmp_path: Path) -> None:
    async def scenario(machine: FakeMachine) -> None:
        async with watching(machine, hang_s=1.5) as (_, told):
            machine.hang("nvmlDeviceGetTemperature")
            hang = await told.first(k.DRIVER_HANG)
            assert (hang.device, hang.value) == ("nvidia-driver", 1.5)
            await told.state("nvidia", "dead: no answer")
            machine.port(0, "state", "1: DOWN")
            await told.first(k.LINK_DOWN, value=1.0)
            machine.hang("")
            await told.first(k.DRIVER_HANG, value=0.0)
            await told.state("nvidia", "ok")
            machine.set(1, "remap-pending", 1)
            await told.first(k.REMAP_PENDING)

    on(tmp_path, scenario)


def test_a_driver_that_hangs_for_good_is_given_up_and_tried_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(probe_process, "GIVE_UP_S", 3.0)
    monkeypatch.setattr(probe_process, "BACKOFF_S", 0.1)

    async def scenario(machine: FakeMachine) -> None:
        async with watching(machine, hang_s=1.5) as (eyes, told):
            before = set(eyes.probe_pids)
            machine.hang("nvmlDeviceGetTemperature")
            dead = await told.first(k.SOURCE_DEAD)
            assert "has not returned" in dead.detail
            machine.hang("")
            await told.state("nvidia", "ok")
            assert set(eyes.probe_pids) - before

    on(tmp_path, scenario)


def test_a_source_that_dies_is_told_as_dead_and_started_anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(probe_process, "BACKOFF_S", 0.1)

    async def scenario(machine: FakeMachine) -> None:
        async with watching(machine) as (eyes, told):
            victim = next(p for p in eyes.probe_pids if "nvidia" in psutil.Process(p).cmdline())
            os.kill(victim, signal.SIGSEGV)
            dead = await told.first(k.SOURCE_DEAD)
            assert "signal 11" in dead.detail
            await told.until(lambda: any(s.sources["nvidia"].startswith("dead") for s in told.sources))
            await told.state("nvidia", "ok")
            machine.xid(0, 79, kernel=False)
            await told.first(k.XID, code=79)

    on(tmp_path, scenario)


def test_flaps_and_counters_of_a_port_are_told(tmp_path: Path) -> None:
    async def scenario(machine: FakeMachine) -> None:
        async with watching(machine) as (_, told):
            machine.count(0, "counters/link_downed", 1)
            machine.count(1, "counters/symbol_error", 12)
            await told.first(k.LINK_FLAP, device="mlx5_0/1")
            assert (await told.first("port-symbol_error")).value == 12.0
            machine.port(1, "state", "1: DOWN")
            machine.port(1, "phys_state", "3: Disabled")
            assert (await told.first(k.LINK_DOWN, value=2.0)).device == "mlx5_1/1"

    on(tmp_path, scenario)


def test_memory_that_ran_out_for_one_of_ours_names_the_worker(tmp_path: Path) -> None:
    async def scenario(machine: FakeMachine) -> None:
        async with watching(machine) as (_, told):
            machine.say("oom-kill:constraint=CONSTRAINT_MEMCG,task=other,pid=99,uid=0")
            machine.say("oom-kill:constraint=CONSTRAINT_MEMCG,task=python,pid=4711,uid=0")
            signal_ = await told.first(k.OOM_PROGRAM)
            assert signal_.worker == "n0.w1"
            assert len(told.signals) == 1

    on(tmp_path, scenario)


def test_a_machine_without_devices_says_so_and_starts_nothing(tmp_path: Path) -> None:
    async def scenario() -> None:
        told = Told()
        (tmp_path / "dev").mkdir()
        places = WatchedPlaces(str(tmp_path))
        eyes = MachineMonitor(places, WORKERS, {}, told.send, lambda pid: None)
        task = asyncio.ensure_future(eyes.run())
        for source in ("nvidia", "network", "amd", KERNEL_LOG):
            await told.state(source, "not present")
        assert eyes.probe_pids == []
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)

    asyncio.run(asyncio.wait_for(scenario(), LIMIT_S))


def test_dumps_of_the_flight_recorder_name_the_culprit(tmp_path: Path) -> None:
    import pickle

    async def scenario() -> None:
        told = Told()
        eyes = MachineMonitor(
            WatchedPlaces(str(tmp_path / "none"), watched=(str(tmp_path),)), WORKERS, {}, told.send, lambda pid: None
        )
        task = asyncio.ensure_future(eyes.run())
        await told.until(lambda: told.sources)
        for rank, last in ((0, 5), (1, 3)):
            entries = [
                {"process_group": ("0", "pg"), "collective_seq_id": i, "profiling_name": "x"} for i in range(last)
            ]
            (tmp_path / f"nccl_trace_rank_{rank}").write_bytes(pickle.dumps({"entries": entries}))
        found = await told.first(k.FLIGHT_RECORDER)
        assert found.code == 1
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)

    asyncio.run(asyncio.wait_for(scenario(), LIMIT_S))


def test_a_driver_that_cannot_be_loaded_is_not_present_and_not_tried_again(tmp_path: Path) -> None:
    async def scenario(machine: FakeMachine) -> None:
        machine.library.unlink()
        machine.library.write_text("not a library")
        told = Told()
        eyes = MachineMonitor(WatchedPlaces(str(machine.root)), WORKERS, {}, told.send, lambda pid: None)
        task = asyncio.ensure_future(eyes.run())
        await told.state("nvidia", "not present: ")
        await told.state("network", "ok")
        await told.until(lambda: len(eyes.probe_pids) == 1)
        assert "cannot be loaded" in told.sources[-1].sources["nvidia"]
        assert [s.kind for s in told.signals] == []
        assert len(eyes.probe_pids) == 1
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)

    on(tmp_path, scenario)
