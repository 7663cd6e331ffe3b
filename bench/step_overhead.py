"""What torchrelay costs in a step of about 100 ms: the same script with torchrun and with `torchrelay run`, in turns.

Runs come in pairs, with the order changed from pair to pair, so that a busy machine slows both alike. Of each run the
median step counts, of each pair the ratio of its two medians, and of all pairs the median ratio. Processor time is shown
beside wall time: it hardly depends on what else runs. The requirement is a ratio below 1.01.

A machine's own speed can change by more than what is looked for from one run to the next. So the same is measured again within
one run, where protection is off and on in turns: each block of steps is compared with the mean of its two neighbours.

There are three shapes. `processor`: the model is computed on the processor that the shim runs on, whose caches it fills with
its own data in each step. `device`: a tiny model, and the rest of the step is work that leaves the caches alone, as that of
a device does. `registries`: the same beside what large packages keep at module level, some 20,000 objects that no step writes to.
"""

from __future__ import annotations

import argparse
import functools
import itertools
import json
import os
import re
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from calibration import calibrate

SCRIPT = Path(__file__).with_name("overhead_script.py")
WARM_UP_STEPS = 10
CALIBRATION_STEPS = 40
BLOCK_STEPS = 6
CORES = os.cpu_count() or 1


@dataclass(frozen=True)
class Steps:
    """Median seconds of a step."""

    wall_s: float
    cpu_s: float


def measure(launcher: list[str], ranks: int, script: list[str], out: Path) -> Steps:
    command = [sys.executable, "-m", *launcher, "--nproc-per-node", str(ranks), str(SCRIPT), "--out", str(out), *script]
    done = subprocess.run(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=os.environ | {"OMP_NUM_THREADS": "1"}
    )
    if done.returncode != 0:
        sys.exit(f"{' '.join(command)}\nended with exit code {done.returncode}:\n{done.stdout[-4000:]}")
    if launcher == RELAY and not was_protected(done.stdout):
        sys.exit(f"the job was not protected, so there is nothing to measure:\n{done.stdout[-4000:]}")
    steps = read_steps(out)[WARM_UP_STEPS:]
    return Steps(statistics.median(s.wall_s for s, _ in steps), statistics.median(s.cpu_s for s, _ in steps))


def was_protected(told: str) -> bool:
    """Tell from the command's last words whether protection was on: after a fault of the shim the script goes on without it."""
    levels = re.findall(r"^torchrelay: (?:warning: )?(protected|partly protected|not protected): ", told, re.MULTILINE)
    return bool(levels) and levels[-1] != "not protected"


def read_steps(out: Path) -> list[tuple[Steps, bool]]:
    """Return each step that overhead_script.py noted, and whether it was protected."""
    lines = [line.split() for line in out.read_text().splitlines()]
    return [(Steps(float(wall), float(cpu)), protected == "1") for wall, cpu, protected in lines]


PLAIN = ["torch.distributed.run", "--standalone"]
RELAY = ["torchrelay.cli", "run", "--spares", "0", "--rehearse-every", "0"]
"""One rehearsal in half an hour would be one in each of these short runs."""


SHAPES: dict[str, Callable[[int], list[str]]] = {
    "processor": lambda amount: ["--batch", str(amount)],
    "device": lambda amount: ["--batch", "1", "--device-rounds", str(amount * ROUNDS)],
    "registries": lambda amount: [*SHAPES["device"](amount), "--registries", "4000"],
}
"""What the script is told for an amount of work."""
ROUNDS = 5_000


def fitting_amount(shape: str, ranks: int, out: Path) -> int:
    def step_s(amount: int) -> float:
        return measure(PLAIN, ranks, ["--steps", str(CALIBRATION_STEPS), *SHAPES[shape](amount)], out).wall_s

    return calibrate(step_s, functools.partial(print, flush=True))


def ratio_text(name: str, plain: list[float], relay: list[float]) -> str:
    ratios = sorted(r / p for p, r in zip(plain, relay, strict=True))
    quartiles = statistics.quantiles(ratios, n=4) if len(ratios) > 2 else [ratios[0], 0.0, ratios[-1]]
    return (
        f"{name}: {statistics.median(ratios):.4f}  (quartiles {quartiles[0]:.4f} to {quartiles[2]:.4f}, all {ratios[0]:.4f} to "
        f"{ratios[-1]:.4f}; step {statistics.median(plain) * 1e3:.2f} ms with torchrun, "
        f"{statistics.median(relay) * 1e3:.2f} ms with torchrelay)"
    )


def by_turns(steps: list[tuple[Steps, bool]], block_steps: int = BLOCK_STEPS) -> list[tuple[Steps, Steps]]:
    """Pair each block of steps with the mean of the two blocks around it, which are of the other kind; protected first.

    A block counts by its medians, without its first step: in that step the caches are still those of the other kind.
    """
    blocks = [(on, [s for s, _ in block]) for on, block in itertools.groupby(steps, key=lambda step: step[1])]
    whole = [(on, _median(block[1:])) for on, block in blocks if len(block) == block_steps]
    found = []
    for (_, before), (on, here), (_, after) in zip(whole, whole[1:], whole[2:], strict=False):
        around = Steps((before.wall_s + after.wall_s) / 2, (before.cpu_s + after.cpu_s) / 2)
        found.append((here, around) if on else (around, here))
    return found


def _median(steps: list[Steps]) -> Steps:
    return Steps(statistics.median(s.wall_s for s in steps), statistics.median(s.cpu_s for s in steps))


def turns_text(name: str, protected: list[float], bare: list[float]) -> str:
    """Return a line of the result. The error is a little too small: neighbours share blocks, and it takes them as independent."""
    ratios = [p / b for p, b in zip(protected, bare, strict=True)]
    error = statistics.stdev(ratios) / len(ratios) ** 0.5
    return (
        f"{name}: {statistics.median(ratios):.4f}  (mean {statistics.mean(ratios):.4f} +- {error:.4f}; "
        f"{statistics.median(p - b for p, b in zip(protected, bare, strict=True)) * 1e3:.2f} ms more than "
        f"{statistics.median(bare) * 1e3:.2f} ms)"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pairs", type=int, default=6)
    parser.add_argument("--steps", type=int, default=120)
    parser.add_argument("--blocks", type=int, default=60, help="of the run in which protection is off and on in turns")
    parser.add_argument(
        "--ranks", type=int, default=min(2, max(1, CORES - 1)), help="leaves a core for the rest if it can"
    )
    parser.add_argument("--shape", choices=SHAPES, default="processor")
    parser.add_argument(
        "--amount",
        type=int,
        help=f"sequences per rank, or {ROUNDS} rounds of the device's work; unless given, what makes a step of 100 ms here",
    )
    parser.add_argument("--breakdown-only", action="store_true")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "steps.txt"
        amount = args.amount or fitting_amount(args.shape, args.ranks, out)
        script = ["--steps", str(args.steps), *SHAPES[args.shape](amount)]
        plain, relay = [], []
        for number in range(0 if args.breakdown_only else args.pairs):
            order = (PLAIN, RELAY) if number % 2 == 0 else (RELAY, PLAIN)
            for launcher in order:
                (plain if launcher is PLAIN else relay).append(measure(launcher, args.ranks, script, out))
            print(
                f"pair {number + 1} of {args.pairs}: wall {relay[-1].wall_s / plain[-1].wall_s:.4f}, "
                f"processor {relay[-1].cpu_s / plain[-1].cpu_s:.4f}",
                flush=True,
            )
        if plain:
            about = f"{args.ranks} ranks, shape {args.shape}, {args.pairs} pairs of {args.steps} steps"
            print(f"\nmedian step with torchrelay / with torchrun, {about}:")
            print(ratio_text("wall time", [s.wall_s for s in plain], [s.wall_s for s in relay]))
            print(ratio_text("processor time", [s.cpu_s for s in plain], [s.cpu_s for s in relay]))
        turns = ["--steps", str(args.blocks * BLOCK_STEPS), *SHAPES[args.shape](amount), "--in-turns", str(BLOCK_STEPS)]
        measure(RELAY, args.ranks, turns, out)
        found = by_turns(read_steps(out)[2 * BLOCK_STEPS :])
        print(f"\nstep with protection / without, {args.blocks} blocks of {BLOCK_STEPS} steps in turns within one run:")
        print(turns_text("wall time", [on.wall_s for on, _ in found], [off.wall_s for _, off in found]))
        print(turns_text("processor time", [on.cpu_s for on, _ in found], [off.cpu_s for _, off in found]))
        parts = Path(folder) / "parts.json"
        step = measure(RELAY, args.ranks, [*script, "--breakdown", str(parts)], out)
        print(f"\nwhere rank 0 spends it in a step of {step.wall_s * 1e3:.1f} ms, medians, clocks included:")
        print(f"  {'microseconds':<32} {'wall':>9} {'processor':>9}")
        for label, (wall, cpu) in json.loads(parts.read_text()).items():
            print(f"  {label:<32} {wall:9.0f} {cpu:9.0f}")


if __name__ == "__main__":
    main()
