"""What a boundary and a gate cost beside thousands of objects that are kept: processor time of the training thread, by part.

Walks, journals and their writing are done in a loop of their own, without ranks: 16,000 objects at module level (registries.py), of
which `--changed` are written to in each step, a history that grows, and 9,000 objects below an attribute of a trainer. With
`--index` there is a list of 400,000 numbers as well.
"""

from __future__ import annotations

import argparse
import os
import random
import statistics
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from torchrelay.protocol.journals.journal import JournalWriter
from torchrelay.shim.capture.models.modules import ModuleTrees
from torchrelay.shim.capture.records.encode import encode, in_blocks
from torchrelay.shim.capture.walks.rewalk import Rewalk
from torchrelay.shim.capture.walks.walk import Walk

WARM_UP_STEPS = 10
MEMORY = Path("/dev/shm")


class Trainer:
    def __init__(self) -> None:
        self.step = 0
        self.records = [{f"record{n}": [n, {"number": n}] for n in range(2250)} for _ in range(2)]


class Parts:
    """Processor time of this thread, in seconds, by part."""

    def __init__(self) -> None:
        self.seconds: dict[str, list[float]] = defaultdict(list)

    @contextmanager
    def timed(self, part: str) -> Iterator[None]:
        start = time.thread_time()
        yield
        self.seconds[part].append(time.thread_time() - start)


def measure(registries: Any, steps: int, changed: int, folder: Path) -> tuple[int, Parts]:
    """Return how many objects have a node, and the times of the parts."""
    trainer = Trainer()
    script = {"registries": vars(registries), "train": {"trainer": trainer}}
    trees, parts, journal = ModuleTrees(), Parts(), JournalWriter(folder)
    state = Walk(trees).run([], script)
    encode(state)
    entries, chance = list(registries.CONFIGS.values()), random.Random(0)
    for step in range(steps):
        for entry in chance.sample(entries, changed):
            entry.extra["step"] = step
            entry.tags.append(step)
        trainer.step = step
        registries.HISTORY.append(float(step))
        with parts.timed("gate: walk"):
            at_gate = Rewalk(trees, state, at_gate=True).run([], script)
        with parts.timed("gate: journal"):
            encode(at_gate)
        with parts.timed("gate: what is let go"):
            del at_gate
        registries.HISTORY.append(float(step))
        with parts.timed("boundary: walk"):
            now = Rewalk(trees, state, at_gate=False).run([], script)
        with parts.timed("boundary: journal"):
            encode(now)
            blocks = in_blocks(now)
        with parts.timed("boundary: writing it"):
            journal.write_boundary(step, b"head", blocks)
        with parts.timed("boundary: what is let go"):
            state = now
            del now
    journal.close()
    return len(state.index), parts


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--index", action="store_true")
    parser.add_argument("--changed", type=int, nargs="*", default=[0, 10, 100])
    parser.add_argument("--steps", type=int, default=100)
    given = parser.parse_args()
    os.environ["BENCH_REGISTRIES"] = "4000"
    import registries

    if not given.index:
        registries.INDEX.clear()
    for changed in given.changed:
        with tempfile.TemporaryDirectory(dir=MEMORY) as folder:
            objects, parts = measure(registries, given.steps, changed, Path(folder))
        medians = {part: statistics.median(seconds[WARM_UP_STEPS:]) * 1e6 for part, seconds in parts.seconds.items()}
        print(f"{objects:,} objects, {changed} entries changed in each step: {sum(medians.values()):.0f} microseconds")
        for part, microseconds in medians.items():
            print(f"  {part:<28} {microseconds:8.0f}")


if __name__ == "__main__":
    main()
