"""A dcgm-exporter, as a real HTTP server with its kind of text, beside the driver in C: what the one reads, the other leaves."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from integration.devices.test_device_sources import LIMIT_S, WORKERS, Told, gpu
from support.fake_machines import fake_machine

from torchrelay.agent.fake_machine.machine import FakeMachine
from torchrelay.agent.health.monitor import MachineMonitor
from torchrelay.agent.health.probes import places, probe_process
from torchrelay.agent.health.probes.places import WatchedPlaces
from torchrelay.agent.health.probes.source import Covered
from torchrelay.protocol.health import kinds as k

pytestmark = pytest.mark.core


class Exporter:
    """`values`: (metric, GPU) -> value; `labels` of all of them."""

    def __init__(self, server: ThreadingHTTPServer) -> None:
        self._server = server
        self.url = f"http://127.0.0.1:{server.server_port}/metrics"
        self.values: dict[tuple[str, int], float] = {}
        self._scraped = threading.Semaphore(0)

    def wait_for_scrapes(self, count: int) -> None:
        """From now on."""
        while self._scraped.acquire(blocking=False):
            pass
        for _ in range(count):
            self._scraped.acquire()

    def text(self) -> str:
        self._scraped.release()
        lines = []
        for (metric, number), value in list(self.values.items()):
            name, _, extra = metric.partition(" ")
            lines += [f"# HELP {name} of a GPU", f"# TYPE {name} gauge"]
            labels = f'gpu="{number}",UUID="{gpu(number)}",pci_bus_id="00000000:{0x10 + number:02X}:00.0",device="nvidia{number}"'
            lines.append(f"{name}{{{labels}{extra}}} {value:g}")
        return "\n".join(lines) + "\n"

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()


@contextmanager
def exporter(port: int = 0) -> Iterator[Exporter]:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            body = found.text().encode()
            self.send_response(200)
            self.send_header("Content-Type", "text/plain; version=0.0.4; charset=utf-8")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", port), Handler)
    found = Exporter(server)
    thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
    thread.start()
    try:
        yield found
    finally:
        found.close()
        thread.join()


@asynccontextmanager
async def watching(machine: FakeMachine, url: str) -> AsyncIterator[tuple[MachineMonitor, Told]]:
    told = Told()
    eyes = MachineMonitor(WatchedPlaces(str(machine.root), dcgm=url), WORKERS, {}, told.send, lambda pid: None)
    nvidia = eyes._probes["nvidia"]
    leave = nvidia.leave

    def left(covered: Covered) -> None:
        leave(covered)
        told.wake()

    nvidia.leave = left  # type: ignore[method-assign]  # in its place for this test
    task = asyncio.ensure_future(eyes.run())
    try:
        for source in ("nvidia", "dcgm"):
            await told.state(source, "ok")
        yield eyes, told
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


@pytest.fixture(autouse=True)
def _soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(places, "DCGM_POLL_S", 0.2)
    monkeypatch.setattr(probe_process, "BACKOFF_S", 0.2)


def on(tmp_path: Path, scenario: Callable[[FakeMachine, Exporter], Awaitable[None]], values: dict[str, float]) -> None:
    with exporter() as found:
        found.values = {(metric, number): value for metric, value in values.items() for number in (0, 1)}
        machine = fake_machine(tmp_path / "machine")
        asyncio.run(asyncio.wait_for(scenario(machine, found), LIMIT_S))


async def left_to_the_exporter(eyes: MachineMonitor, told: Told, machine: FakeMachine) -> None:
    """The driver's process has heard of it: a reading that is the driver's alone came after the order."""
    await told.until(lambda: eyes._probes["nvidia"].left)
    before = len([s for s in told.signals if s.kind == k.REMAP_FAILED])
    machine.set(1, "remap-failed", 1 - before % 2)
    await told.until(lambda: len([s for s in told.signals if s.kind == k.REMAP_FAILED]) > before)


def kinds(told: Told, device: str) -> list[str]:
    return [s.kind for s in told.signals if s.device == device]


def test_what_the_exporter_reads_comes_from_it_alone(tmp_path: Path) -> None:
    async def scenario(machine: FakeMachine, found: Exporter) -> None:
        async with watching(machine, found.url) as (eyes, told):
            await left_to_the_exporter(eyes, told, machine)
            machine.add(0, "ecc-uncorrected", 5)
            machine.add(0, "pcie-replays", 5)  # which the exporter does not have
            await told.first(k.PCIE_REPLAYS, device=gpu(0))
            found.values["DCGM_FI_DEV_ECC_DBE_VOL_TOTAL", 0] = 4.0
            assert (await told.first(k.ECC_UNCORRECTED, device=gpu(0))).value == 1.0
            assert kinds(told, gpu(0)) == [k.PCIE_REPLAYS, k.ECC_UNCORRECTED]

    on(tmp_path, scenario, {"DCGM_FI_DEV_ECC_DBE_VOL_TOTAL": 3.0})


def test_an_exporter_that_ends_is_told_as_dead_and_the_driver_is_read_from_there_on(tmp_path: Path) -> None:
    async def scenario(machine: FakeMachine, found: Exporter) -> None:
        machine.set(0, "ecc-corrected", 3)
        async with watching(machine, found.url) as (eyes, told):
            await left_to_the_exporter(eyes, told, machine)
            found.values["DCGM_FI_DEV_ECC_SBE_VOL_TOTAL", 0] = 10.0
            assert (await told.first(k.ECC_CORRECTED)).value == 7.0
            machine.set(0, "ecc-corrected", 12)
            await told.until(lambda: eyes._probes["nvidia"].left.get(gpu(0), {}).get(k.ECC_CORRECTED) == 10.0)
            found.close()
            dead = await told.first(k.SOURCE_DEAD, device="dcgm-driver")
            assert "its process ended with exit code 1" in dead.detail
            second = await told.first(k.ECC_CORRECTED, value=2.0)
            assert [s.value for s in told.signals if s.kind == k.ECC_CORRECTED] == [7.0, second.value]

    on(tmp_path, scenario, {"DCGM_FI_DEV_ECC_SBE_VOL_TOTAL": 3.0})


def test_health_watches_and_levels_are_told(tmp_path: Path) -> None:
    async def scenario(machine: FakeMachine, found: Exporter) -> None:
        async with watching(machine, found.url) as (_, told):
            found.values['DCGM_EXP_GPU_HEALTH_STATUS ,health_watch="NVLINK"', 1] = 20
            watch = await told.first(k.DCGM_HEALTH)
            assert (watch.device, watch.value, watch.detail) == (gpu(1), 20.0, "NVLINK 20")
            found.values["DCGM_FI_DEV_GPU_TEMP", 0] = 88
            assert (await told.first(k.TEMPERATURE_MARGIN)).value == 2.0
            found.values["DCGM_FI_DEV_CLOCKS_EVENT_REASONS", 0] = 0x40
            assert (await told.first(k.HW_SLOWDOWN)).device == gpu(0)

    values = {
        "DCGM_FI_DEV_GPU_TEMP": 40.0,
        "DCGM_FI_DEV_SLOWDOWN_TEMP": 90.0,
        "DCGM_FI_DEV_CLOCKS_EVENT_REASONS": 0.0,
        'DCGM_EXP_GPU_HEALTH_STATUS ,health_watch="MEM"': 0.0,
        'DCGM_EXP_GPU_HEALTH_STATUS ,health_watch="NVLINK"': 0.0,
    }
    on(tmp_path, scenario, values)


def test_an_xid_of_the_exporter_counts_where_the_driver_cannot_be_asked(tmp_path: Path) -> None:
    async def scenario(machine: FakeMachine, found: Exporter) -> None:
        machine.library.unlink()
        machine.library.write_text("not a library")
        told = Told()
        eyes = MachineMonitor(
            WatchedPlaces(str(machine.root), dcgm=found.url), WORKERS, {}, told.send, lambda pid: None
        )
        task = asyncio.ensure_future(eyes.run())
        await told.state("nvidia", "not present")
        await told.state("dcgm", "ok")
        await told.until(lambda: gpu(1) in told.sources[-1].devices["n0.w1"])
        await asyncio.to_thread(found.wait_for_scrapes, 2)
        found.values["DCGM_FI_DEV_XID_ERRORS", 1] = 79
        assert (await told.first(k.XID)).code == 79
        assert [s.code for s in told.signals] == [79], "the XID 31 was there before"
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)

    on(tmp_path, scenario, {"DCGM_FI_DEV_XID_ERRORS": 31.0})


def test_an_exporter_without_gpus_is_not_present_and_one_that_was_asked_for_and_is_not_there_is_dead(
    tmp_path: Path,
) -> None:
    async def scenario(machine: FakeMachine, found: Exporter) -> None:
        for closed, begins in ((False, "not present: "), (True, "dead: ")):
            if closed:
                found.close()
            told = Told()
            eyes = MachineMonitor(
                WatchedPlaces(str(machine.root), dcgm=found.url), WORKERS, {}, told.send, lambda pid: None
            )
            task = asyncio.ensure_future(eyes.run())
            await told.state("dcgm", begins)
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    on(tmp_path, scenario, {})
