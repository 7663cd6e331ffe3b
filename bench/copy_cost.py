"""What `--buddy-every` costs: steps with a copy beside steps without one, of the same run, and runs without copies at all; the same
with `--buddy-sync`; before that, how fast a copy is made by itself.

    python bench/copy_cost.py [--megabytes 96] [--every 5] [--steps 60] [--pairs 3]

A `fully_shard` model on two ranks, AdamW. `--megabytes` is each rank's state. The time of a step is that between two heads of
the loop on rank 0; the copy is made at the head that begins it.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import torch

from torchrelay.shim.replicas.kept_tensors import KeptTensors

SCRIPT = """
import json, sys, time
import torch, torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

out, width, layers, steps = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4])
dist.init_process_group("gloo")
mesh = init_device_mesh("cpu", (dist.get_world_size(),))
torch.manual_seed(0)
blocks = [fully_shard(nn.Linear(width, width), mesh=mesh) for _ in range(layers)]
model = fully_shard(nn.Sequential(*blocks), mesh=mesh)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
heads = []
x = torch.randn(4, width)
for step in range(steps):
    heads.append(time.perf_counter())
    optimizer.zero_grad()
    model(x).square().mean().backward()
    optimizer.step()
if dist.get_rank() == 0:
    size = sum(p.to_local().numel() * p.element_size() for p in model.parameters())
    size += sum(
        t.to_local().numel() * t.element_size() if hasattr(t, "to_local") else t.numel() * t.element_size()
        for state in optimizer.state.values() for t in state.values()
    )
    open(out, "w").write(json.dumps({"heads": heads, "bytes": size}))
dist.destroy_process_group()
"""
WARM_UP = 10
WIDTH = 1024
BYTES_A_LAYER = 3 * 4 * (WIDTH * WIDTH + WIDTH) // 2
"""Of each of two ranks: weight, bias and two moments of each."""


def run(folder: Path, every: int, layers: int, steps: int, *, sync: bool = False) -> tuple[list[float], int]:
    """Run the model. Return the seconds of each step of rank 0, and the bytes of its state."""
    script, out = folder / "script.py", folder / f"out-{every}.json"
    script.write_text(SCRIPT)
    command = [sys.executable, "-m", "torchrelay.cli", "run", "--nproc-per-node=2", "--quiet", "--rehearse-every=0"]
    command += [f"--buddy-every={every}"] if every else []
    command += ["--buddy-sync"] if sync else []
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "TORCHRELAY_STATE_DIR": str(folder / "state")}
    subprocess.run(
        [*command, str(script), str(out), str(WIDTH), str(layers), str(steps)], env=environment, cwd=folder, check=True
    )
    found = json.loads(out.read_text())
    heads = found["heads"]
    return [b - a for a, b in itertools.pairwise(heads)], found["bytes"]


def rates(megabytes: int) -> None:
    """Measure how fast a copy is made: into new memory, into memory of an older copy, and its digests, taken beside training."""
    torch.set_num_threads(1)
    count = max(megabytes // 4, 1)
    tensors = {str(i): torch.randn(1 << 20) for i in range(count)}
    size = count * (4 << 20)
    with tempfile.TemporaryDirectory(dir="/dev/shm") as name:
        kept = KeptTensors(Path(name))
        took_s: dict[str, list[float]] = {"new memory": [], "older copy": [], "digests": []}
        for turn in range(6):
            started_s = time.perf_counter()
            kept.fill(tensors)
            filled_s = time.perf_counter()
            kept.seal(turn)
            took_s["older copy" if turn else "new memory"].append(filled_s - started_s)
            took_s["digests"].append(time.perf_counter() - filled_s)
    for what, seconds in took_s.items():
        print(f"{what}: {size / min(seconds) / 1e9:.1f} GB/s, best of {len(seconds)}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--megabytes", type=int, default=96)
    parser.add_argument("--every", type=int, default=5)
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--pairs", type=int, default=3)
    options = parser.parse_args()
    rates(options.megabytes)
    layers = max(round(options.megabytes * 1e6 / BYTES_A_LAYER), 1)
    for _ in range(options.pairs):
        with tempfile.TemporaryDirectory() as name:
            plain, size = run(Path(name), 0, layers, options.steps)
            print(f"{size / 1e6:.0f} MB a rank; {_told(plain[WARM_UP:])} without --buddy-every", flush=True)
            for sync in (False, True):
                copied, _ = run(Path(name), options.every, layers, options.steps, sync=sync)
                numbered = list(enumerate(copied))[WARM_UP:]
                with_copy = [s for step, s in numbered if step % options.every == 0]
                others = [s for step, s in numbered if step % options.every]
                option = f"--buddy-every {options.every}" + (" --buddy-sync" if sync else "")
                beside = f"{_told(others)} without a copy; " if others else ""
                print(
                    f"  {option}: steps {beside}{_told(with_copy)} with one; {_told(copied[WARM_UP:])} all", flush=True
                )


def _told(steps_s: list[float]) -> str:
    return f"median {statistics.median(steps_s) * 1e3:.1f} ms, mean {statistics.mean(steps_s) * 1e3:.1f} ms"


if __name__ == "__main__":
    main()
