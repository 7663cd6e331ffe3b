"""What torchrelay adds to the time from the command to the end of the first step: the same script with torchrun and with
`torchrelay run`, in turns.

Runs come in rounds of one each, with the order changed from round to round. Of each round the ratio to torchrun counts, and of
all rounds the median ratio. The requirement is 1.05. On a machine with few cores a spare's imports take time from the ranks',
so that runs without and with a spare are told apart.
"""

from __future__ import annotations

import argparse
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

SCRIPT = """
import sys, time
import torch, torch.distributed as dist
dist.init_process_group("gloo")
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(10, 10))
optimizer = torch.optim.SGD(model.parameters(), 0.1)
for step in range(3):
    optimizer.zero_grad()
    model(torch.ones(2, 10)).sum().backward()
    optimizer.step()
    if step == 0:
        with open(f"{sys.argv[1]}.{dist.get_rank()}", "w") as file:
            file.write(str(time.time()))
dist.destroy_process_group()
"""
LAUNCHERS = {
    "torchrun": ["torch.distributed.run", "--standalone"],
    "no spare": ["torchrelay.cli", "run", "--spares", "0"],
    "one spare": ["torchrelay.cli", "run", "--spares", "1"],
}


@dataclass(frozen=True)
class StartUp:
    """The times of one start. `wall_s`: from the command to the end of the slowest rank's first step.

    `cpu_s`: processor time of all of its processes.
    """

    wall_s: float
    cpu_s: float


def start_up(launcher: list[str], ranks: int, folder: Path) -> StartUp:
    script, out = folder / "train.py", folder / "ended"
    script.write_text(SCRIPT)
    marks = [Path(f"{out}.{rank}") for rank in range(ranks)]
    for mark in marks:
        mark.unlink(missing_ok=True)
    command = [sys.executable, "-m", *launcher, "--nproc-per-node", str(ranks), str(script), str(out)]
    began_s, cpu_s = time.time(), _children_cpu_s()
    done = subprocess.run(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=os.environ | {"OMP_NUM_THREADS": "1"}
    )
    if done.returncode != 0:
        told = f"{' '.join(command)}\nended with exit code {done.returncode}:\n{done.stdout[-4000:]}"
        if launcher != LAUNCHERS["torchrun"] or not all(mark.exists() for mark in marks):
            sys.exit(told)
        print(told)  # on a busy machine torch itself fails at a script's end at times, after what is measured here
    ended_s = max(float(mark.read_text()) for mark in marks)
    return StartUp(ended_s - began_s, _children_cpu_s() - cpu_s)


def _children_cpu_s() -> float:
    """Return the processor time of the children that were waited for, and of their children."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--ranks", type=int, default=2)
    given = parser.parse_args()
    found: dict[str, list[float]] = {name: [] for name in LAUNCHERS}
    with tempfile.TemporaryDirectory() as folder:
        for number in range(given.rounds):
            for name in list(LAUNCHERS)[:: 1 if number % 2 else -1]:
                found[name].append(start_up(LAUNCHERS[name], given.ranks, Path(folder)).wall_s)
            print(", ".join(f"{name} {times_s[-1]:.2f} s" for name, times_s in found.items()), flush=True)
    for name, times_s in found.items():
        ratios = sorted(took_s / plain_s for took_s, plain_s in zip(times_s, found["torchrun"], strict=True))
        print(f"{name}: median {statistics.median(times_s):.2f} s, ratio to torchrun {statistics.median(ratios):.3f}")


if __name__ == "__main__":
    main()
