"""Running a program of `programs/` as a job, with torchrun and with torchrelay, and reading what became of it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

from imitated_gpu.faults import Firing, Orders

PROGRAMS = Path(__file__).parent / "programs"
TORCHRUN = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
TORCHRELAY = [sys.executable, "-m", "torchrelay.cli", "run"]
RUN_S = 150


@dataclass
class Job:
    """A job that has ended."""

    returncode: int
    output: str
    results: list[str]
    """What each rank has written, by its rank: all that it has computed."""
    events: list[dict[str, Any]]
    fired: list[Firing]

    def named(self, name: str) -> list[dict[str, Any]]:
        """Return its events of that name."""
        return [event for event in self.events if event["name"] == name]

    @property
    def struck(self) -> int:
        """Return how many faults of `--inject` have fired."""
        return len(self.named("fault_injected"))

    @property
    def committed(self) -> list[dict[str, Any]]:
        """Return the ends of migrations that were committed."""
        return [event for event in self.named("migration_finished") if event["outcome"] == "committed"]

    @property
    def losses(self) -> list[str]:
        """Return why each generation was begun, in order."""
        texts = [event["text"] for event in self.named("decision")]
        return [text.partition(": ")[2] for text in texts if text.startswith("generation ")]

    def said(self) -> str:
        """Return all that events and the command have told, to look for words in."""
        return "\n".join([*(json.dumps(event) for event in self.events), self.output])


def _results(out: Path) -> list[str]:
    return [path.read_text() for path in sorted(out.glob("rank*.json"))]


def run(
    folder: Path,
    ranks: int,
    spares: int,
    options: Sequence[str] = (),
    inject: Sequence[str] = (),
    meanwhile: Callable[[Orders], None] = lambda orders: None,
    program: str = "by_hand.py",
    run_s: float = RUN_S,
) -> Job:
    """Run a program with torchrelay in `folder`, for `run_s` at most.

    `meanwhile` is called with the job's orders for faults once it has started.
    """
    out, events, orders = folder / "out", folder / "events.jsonl", Orders(folder / "orders")
    out.mkdir()
    asked = [part for fault in inject for part in ("--inject", fault)]
    command = [*TORCHRELAY, "--nproc-per-node", str(ranks), "--spares", str(spares), "--events", str(events), *asked]
    command += [str(PROGRAMS / program), str(out), *options]
    environment = os.environ | orders.environment()
    with (
        (folder / "stderr").open("w") as stderr,
        subprocess.Popen(command, stdout=stderr, stderr=stderr, cwd=out, env=environment) as process,
    ):
        try:
            meanwhile(orders)
            returncode = process.wait(run_s)
        finally:
            process.terminate()  # what it has started ends with it
    told = [json.loads(line) for line in events.read_text().splitlines()]
    return Job(returncode, (folder / "stderr").read_text(), _results(out), told, orders.fired())


@cache
def undisturbed(ranks: int, *options: str, program: str = "by_hand.py") -> list[str]:
    """Return what the ranks of a program write with torchrun alone."""
    out = Path(mkdtemp())
    command = [*TORCHRUN, "--nproc-per-node", str(ranks), str(PROGRAMS / program), str(out), *options]
    done = subprocess.run(command, capture_output=True, text=True, timeout=RUN_S, check=False, cwd=out)
    assert done.returncode == 0, done.stderr[-3000:]
    return _results(out)
