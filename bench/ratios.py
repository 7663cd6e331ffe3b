"""Ratios of what torchrelay costs, each of two things that were measured side by side: a machine's own speed cancels out.

Less is better in all of them. What has a bound is in bounds.toml.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
import transfer_rate
from start_up import LAUNCHERS, start_up
from step_overhead import PLAIN, RELAY, by_turns, measure, read_steps

GPT_SCRIPT = Path(__file__).resolve().parents[1] / "examples" / "train_gpt.py"
WITHOUT_COPIES = ["--buddy-every", "0"]
"""A rank that is alone would copy its state every few steps: that is another cost than the one of each step."""
KILLS = (60, 120, 180)
"""Steps; each kill has a spare of its own."""
STEPS_WITH_KILLS = 240
_BEST_OF = 4
Samples = dict[str, list[float]]


@dataclass(frozen=True)
class Amount:
    """How much to measure. `long_blocks`: of six steps of 100 ms; `short_blocks`: of 24 steps of 2 ms."""

    long_blocks: int
    short_blocks: int
    pairs: int
    rounds: int
    transfer_bytes: int


SHORT = Amount(long_blocks=25, short_blocks=60, pairs=3, rounds=5, transfer_bytes=64 << 20)
LONG = Amount(long_blocks=80, short_blocks=200, pairs=8, rounds=9, transfer_bytes=512 << 20)


def step_of_100_ms(amount: Amount, folder: Path) -> Samples:
    """Measure a step of 100 ms. Most of it is work that leaves the caches alone, as a device's does."""
    work = ["--batch", "1", "--device-rounds", str(_rounds_of(0.090))]
    return _steps("step_100_ms", 6, amount.long_blocks, work, folder)


def step_of_2_ms(amount: Amount, folder: Path) -> Samples:
    return _steps("step_2_ms", 24, amount.short_blocks, ["--batch", "1", "--width", "16", "--layers", "1"], folder)


def _steps(name: str, block_steps: int, blocks: int, work: list[str], folder: Path) -> Samples:
    steps = ["--steps", str(blocks * block_steps), "--in-turns", str(block_steps)]
    measure([*RELAY, *WITHOUT_COPIES], 1, [*steps, *work], folder / "steps")
    found = by_turns(read_steps(folder / "steps")[2 * block_steps :], block_steps)
    wall = [on.wall_s / off.wall_s for on, off in found]
    return {name: wall, f"{name}_processor": [on.cpu_s / off.cpu_s for on, off in found]}


def _rounds_of(seconds: float) -> int:
    tried, best_s = 20_000, float("inf")
    for _ in range(5):
        began_s = time.thread_time()
        hashlib.pbkdf2_hmac("sha256", b"device", b"", tried)
        best_s = min(best_s, time.thread_time() - began_s)
    return round(seconds / best_s * tried)


def starts(amount: Amount, folder: Path) -> Samples:
    found: Samples = {"start_up": [], "start_up_processor": [], "start_up_with_spare": []}
    for number in range(amount.pairs):
        order = list(LAUNCHERS)[:: 1 if number % 2 else -1]
        took = {name: start_up(LAUNCHERS[name], 2, folder) for name in order}
        plain = took["torchrun"]
        found["start_up"].append(took["no spare"].wall_s / plain.wall_s)
        found["start_up_processor"].append(took["no spare"].cpu_s / plain.cpu_s)
        found["start_up_with_spare"].append(took["one spare"].wall_s / plain.wall_s)
    return found


def takeovers(amount: Amount, folder: Path) -> Samples:
    """Compare the standstill of takeovers with torchrun's start-up, which is the least that a restart costs.

    The start-up is measured before and after.
    """
    before = start_up(LAUNCHERS["torchrun"], 2, folder)
    command = [sys.executable, "-m", "torchrelay.cli", "run", "--nproc-per-node", "2", "--spares", str(len(KILLS))]
    command += ["--rehearse-every", "0", "--json"]
    for number, step in enumerate(KILLS):
        command += ["--inject", f"kill:rank={number % 2},step={step},phase=backward"]
    script = [str(GPT_SCRIPT), "--out", str(folder / "gpt"), "--epochs", "1", "--width", "64", "--layers", "2"]
    script += ["--sequences", str(STEPS_WITH_KILLS * 12)]
    done = _run([*command, *script])
    after = start_up(LAUNCHERS["torchrun"], 2, folder)
    moves = json.loads(done.stdout.splitlines()[-1])["migrations"]
    stalls_s = [
        sum(move["downtime_s"].values()) - move["downtime_s"]["prepare"]
        for move in moves
        if move["outcome"] == "committed"
    ]
    if len(stalls_s) < len(KILLS):
        sys.exit(f"{len(KILLS)} kills, but {len(stalls_s)} migrations:\n{done.stderr[-4000:]}")
    return {"takeover": [stall_s / ((before.wall_s + after.wall_s) / 2) for stall_s in stalls_s]}


def transfers(amount: Amount, folder: Path) -> Samples:
    """Compare the channel with a bare socket, by the best of a few rounds.

    Other work on the machine would take processor time from more threads of the channel than of the socket.
    """
    sizes = argparse.Namespace(
        large=50, bytes=amount.transfer_bytes, tiny=500, connections=4, rounds=_BEST_OF * amount.rounds
    )
    torch.set_num_threads(1)
    _, seconds = transfer_rate.measure(sizes, ("bare", "channel"))
    bare, channel = (_best(seconds[way]) for way in ("bare", "channel"))
    return {"transfer": [c / b for b, c in zip(bare, channel, strict=True)]}


def _best(seconds: list[float]) -> list[float]:
    return [min(seconds[start : start + _BEST_OF]) for start in range(0, len(seconds), _BEST_OF)]


def memory(amount: Amount, folder: Path) -> Samples:
    """Measure memory, with registries, so that the journal has some megabytes."""
    keeps: dict[str, int] = {}
    events, kept = folder / "events.jsonl", folder / "bytes"
    for name, launcher in (("plain", PLAIN), ("relay", [*RELAY, "--events", str(events)])):
        script = ["--steps", "30", "--batch", "1", "--registries", "4000", "--memory", str(kept)]
        measure(launcher, 2, script, folder / "steps")
        keeps[name] = int(kept.read_text())
    told = [json.loads(line) for line in events.read_text().splitlines()]
    journal_bytes = [event["journal_bytes"] for event in told if event["name"] == "rank_report"][-1]
    return {"memory": [(keeps["relay"] - keeps["plain"]) / journal_bytes]}


MEASUREMENTS: Mapping[str, Callable[[Amount, Path], Samples]] = {
    "step of 100 ms": step_of_100_ms,
    "step of 2 ms": step_of_2_ms,
    "start-up": starts,
    "takeover": takeovers,
    "transfer": transfers,
    "memory": memory,
}


def _run(command: list[str]) -> subprocess.CompletedProcess[str]:
    done = subprocess.run(command, capture_output=True, text=True, env=os.environ | {"OMP_NUM_THREADS": "1"})
    if done.returncode != 0:
        sys.exit(f"{' '.join(command)}\nended with exit code {done.returncode}:\n{done.stderr[-4000:]}")
    return done
