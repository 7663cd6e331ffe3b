"""What the agent's eyes cost: processor time and memory of the agent's part, with 8 devices that are polled each second.

Prints one JSON object. The devices are a fake machine's, so calls into the driver cost next to nothing: a real driver's come
on top, and are its own.
"""

import argparse
import asyncio
import json
import tempfile
import time
from pathlib import Path

import psutil

from torchrelay.agent.fake_machine.machine import FakeMachine
from torchrelay.agent.health.eyes import Eyes
from torchrelay.agent.health.places import Places
from torchrelay.protocol.names import WorkerId

DEVICES = 8


def used(processes: list[psutil.Process]) -> float:
    return sum(sum(p.cpu_times()[:2]) for p in processes)


async def measure(seconds: float) -> dict[str, float]:
    with tempfile.TemporaryDirectory() as folder:
        machine = FakeMachine(Path(folder))
        machine.make(DEVICES)
        ready = asyncio.Event()
        sources: dict[str, str] = {}

        def send(message: object) -> None:
            sources.update(getattr(message, "sources", {}))
            if [sources.get(n) for n in ("nvidia", "network", "kernel-log")] == ["ok"] * 3:
                ready.set()

        workers = [WorkerId(f"n0.w{i}") for i in range(DEVICES)]
        eyes = Eyes(Places(folder), workers, {}, send, lambda pid: None)
        task = asyncio.ensure_future(eyes.run())
        await ready.wait()
        own = psutil.Process()
        probes = [psutil.Process(pid) for pid in eyes.probe_pids]
        await asyncio.sleep(2)
        before_s, began_s = used([own, *probes]), time.monotonic()
        await asyncio.sleep(seconds)
        took_s = time.monotonic() - began_s
        result = {
            "cpu_percent": 100 * (used([own, *probes]) - before_s) / took_s,
            "agent_rss_mib": own.memory_info().rss / 2**20,
            "probes_rss_mib": sum(p.memory_info().rss for p in probes) / 2**20,
            "pss_mib": sum(p.memory_full_info().pss for p in (own, *probes)) / 2**20,
            "seconds": took_s,
        }
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        return result


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=60.0)
    print(json.dumps(asyncio.run(measure(parser.parse_args().seconds)), indent=1))


if __name__ == "__main__":
    main()
