"""What the agent costs: processor time and memory, with 8 devices that are polled each second.

Prints one JSON object: of the monitor alone, or with --whole of a job's whole agent, with what it reads of two ranks that train.
The devices are a fake machine's, so calls into the driver cost next to nothing: a real driver's come on top, and are its own.
"""

import argparse
import asyncio
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import psutil

from torchrelay.agent.fake_machine.machine import FakeMachine
from torchrelay.agent.health.monitor import MachineMonitor
from torchrelay.agent.health.probes.places import WatchedPlaces
from torchrelay.protocol.names import WorkerId

DEVICES = 8


def used(processes: list[psutil.Process]) -> float:
    return sum(sum(p.cpu_times()[:2]) for p in processes)


def settled(probes: list[psutil.Process]) -> bool:
    """Return whether the probes do nothing but polling. Takes 5 seconds."""
    before_s = used(probes)
    time.sleep(5)
    return used(probes) - before_s < 0.25


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
        monitor = MachineMonitor(WatchedPlaces(folder), workers, {}, send, lambda pid: None)
        task = asyncio.ensure_future(monitor.run())
        await ready.wait()
        own = psutil.Process()
        probes = [psutil.Process(pid) for pid in monitor.probe_pids]
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


def measure_whole(seconds: float) -> dict[str, float]:
    with tempfile.TemporaryDirectory() as folder:
        plan = Path(folder) / "plan.json"
        nothing = {"name": "nothing", "last_s": 10 * seconds, "do": [], "undo": []}
        plan.write_text(json.dumps({"gpus": DEVICES, "episodes": [nothing]}))
        command = [
            sys.executable,
            "-m",
            "torchrelay.cli",
            "run",
            "--nproc-per-node=2",
            "--observe",
            "--rehearse-every=0",
        ]
        command += [f"--replay={plan}", str(Path(__file__).parent / "endless_training.py")]
        played = Path(folder) / "played.jsonl"
        job = subprocess.Popen(command, cwd=folder, env={**os.environ, "TORCHRELAY_STATE_DIR": f"{folder}/state"})
        try:
            while not played.exists():
                if job.poll() is not None:
                    raise SystemExit("the job ended before it trained")
                time.sleep(0.1)
            children = psutil.Process(job.pid).children(recursive=True)
            agent = next(p for p in children if "torchrelay.agent" in p.cmdline())
            probes = [p for p in agent.children() if any("probe" in part for part in p.cmdline())]
            while not settled(probes):
                pass
            before_s, began_s = used([agent, *probes]), time.monotonic()
            own_s = used([agent])
            time.sleep(seconds)
            took_s = time.monotonic() - began_s
            return {
                "cpu_percent": 100 * (used([agent, *probes]) - before_s) / took_s,
                "agent_alone_cpu_percent": 100 * (used([agent]) - own_s) / took_s,
                "rss_mib": sum(p.memory_info().rss for p in (agent, *probes)) / 2**20,
                "pss_mib": sum(p.memory_full_info().pss for p in (agent, *probes)) / 2**20,
                "probes": len(probes),
                "seconds": took_s,
            }
        finally:
            job.send_signal(signal.SIGINT)
            job.wait()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--whole", action="store_true")
    given = parser.parse_args()
    found = measure_whole(given.seconds) if given.whole else asyncio.run(measure(given.seconds))
    print(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
