"""Starts the demo's training runs, waits for them with one line of progress, and reads what they left behind."""

from __future__ import annotations

import csv
import json
import os
import re
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

import psutil

_POLL_S = 0.01
_SHOW_EVERY_S = 0.25
_PATIENCE_S = 600.0


class DemoError(Exception):
    """A run that did not end as it should; the message says where its output is."""


@dataclass(frozen=True)
class Row:
    """One line of loss.csv. The losses are texts of nine digits: for 32-bit floats equal texts are equal numbers."""

    step: int
    loss: str
    mean_loss: str
    tokens: int
    unix_time_s: float
    """When the step was done, in seconds since the epoch, as all times here."""


@dataclass
class Run:
    name: str
    folder: Path
    wall_s: float
    rows: list[Row]
    digests: dict[int, str]
    """Rank -> SHA-256 of its weights."""
    summary: dict[str, Any] = field(default_factory=dict)
    events: list[dict[str, Any]] = field(default_factory=list)

    def new_steps(self) -> list[Row]:
        """The rows that went beyond everything before: what is left when steps that were done again are left out."""
        found: list[Row] = []
        for row in self.rows:
            if not found or row.step > found[-1].step:
                found.append(row)
        return found

    def last_losses(self) -> dict[int, tuple[str, str]]:
        """Step -> the losses that the run ended up with."""
        return {row.step: (row.loss, row.mean_loss) for row in self.rows}

    def median_step_s(self) -> float:
        times = [row.unix_time_s for row in self.rows]
        return statistics.median(b - a for a, b in pairwise(times))

    def standstill_s(self, start_s: float, end_s: float) -> float:
        """The longest time without a new step that touches the given one, beyond what a step takes anyway."""
        times = [row.unix_time_s for row in self.new_steps()]
        gaps = [b - a for a, b in pairwise(times) if b >= start_s and a <= end_s]
        return max(0.0, max(gaps, default=0.0) - self.median_step_s())

    def finished_migrations(self) -> list[dict[str, Any]]:
        """The `migration_finished` events that moved a rank."""
        return [e for e in self.events if e["name"] == "migration_finished" and e["outcome"] == "committed"]


def read_rows(path: Path) -> list[Row]:
    """Whole lines only: the last one may be in the writing. Empty if there is no file yet."""
    try:
        text = path.read_text()
    except FileNotFoundError:
        return []
    lines = text[: text.rfind("\n") + 1].splitlines()
    return [
        Row(int(r["step"]), r["loss"], r["mean_loss"], int(r["tokens"]), float(r["unix_time_s"]))
        for r in csv.DictReader(lines)
    ]


def read_digests(output: str) -> dict[int, str]:
    """By rank. Ranks share one output, and end their lines after they have written them: two can stand on one line."""
    return {int(rank): digest for rank, digest in re.findall(r"rank (\d+) weights sha256 ([0-9a-f]{64})", output)}


def read_events(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


class Progress:
    """One row that is rewritten on a terminal; elsewhere nothing but the end of each run."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._on_terminal = sys.stdout.isatty()
        self._shown_s = 0.0
        if not self._on_terminal:
            print(f"{name} ...", flush=True)

    def show(self, step: int, total: str, seconds: float) -> None:
        if self._on_terminal and time.monotonic() - self._shown_s >= _SHOW_EVERY_S:
            self._shown_s = time.monotonic()
            doing = f"step {step} of {total}" if step else "starting"
            print(f"\r\x1b[K{self._name}: {doing}, {seconds:.0f} s", end="", flush=True)

    def end(self, text: str) -> None:
        print(("\r\x1b[K" if self._on_terminal else "") + f"{self._name}: {text}", flush=True)


def run(
    name: str,
    commands: Sequence[Sequence[str]],
    folder: Path,
    on_step: Callable[[int, psutil.Process], None] | None = None,
) -> Run:
    """Runs `commands`, whose script writes into `folder`, one after the other: all but the last one are to fail.

    `on_step` is told of the steps that the first one does. Raises DemoError if a command does not end as it should.
    """
    folder.mkdir(parents=True, exist_ok=True)
    progress, started = Progress(name), time.monotonic()
    environment = os.environ | {"OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS", "1")}
    for number, command in enumerate(commands):
        with open(folder / "stdout.txt", "a") as out, open(folder / "stderr.txt", "a") as err:
            process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=out, stderr=err, env=environment)
        try:
            _wait(process, folder, progress, None if number else on_step)
        finally:
            if process.poll() is None:
                process.terminate()
                process.wait()
        if (process.returncode != 0) != (number < len(commands) - 1):
            raise DemoError(f"{name}: exit code {process.returncode}; see stdout.txt and stderr.txt in {folder}")
    wall_s = time.monotonic() - started
    digests = read_digests((folder / "stdout.txt").read_text())
    made = Run(name, folder, wall_s, read_rows(folder / "loss.csv"), digests)
    if not made.rows or not made.digests:
        raise DemoError(f"{name}: the script wrote no losses or no weights; see stdout.txt in {folder}")
    progress.end(f"{len(made.last_losses())} steps, {wall_s:.1f} s")
    return made


def _wait(
    process: subprocess.Popen[bytes],
    folder: Path,
    progress: Progress,
    on_step: Callable[[int, psutil.Process], None] | None,
) -> None:
    parent, started, step, total = psutil.Process(process.pid), time.monotonic(), 0, "?"
    while True:
        try:
            process.wait(_POLL_S)
            return
        except subprocess.TimeoutExpired:
            pass
        seconds = time.monotonic() - started
        if seconds > _PATIENCE_S:
            raise DemoError(f"not done after {_PATIENCE_S:.0f} s; see stdout.txt and stderr.txt in {folder}")
        rows = read_rows(folder / "loss.csv")
        if rows and rows[-1].step != step:
            step = rows[-1].step
            if on_step is not None:
                on_step(step, parent)
        if total == "?":
            found = re.search(r"^step \d+/(\d+) ", (folder / "stdout.txt").read_text(), re.M)
            total = found[1] if found else "?"
        progress.show(step, total, seconds)


def process_of_rank(launcher: psutil.Process, rank: int) -> psutil.Process | None:
    """The training process below `launcher` that has this rank."""
    for child in launcher.children(recursive=True):
        try:
            if child.environ().get("RANK") == str(rank):
                return child
        except psutil.Error:
            continue  # gone, or not started fully
    return None
