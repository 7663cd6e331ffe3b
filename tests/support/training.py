"""Compares what the ranks of two runs have left behind. Missing data is a difference, not an agreement."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

SCRIPTS = Path(__file__).parent / "training_scripts"
_ALWAYS = frozenset({"parameters", "buffers", "training", "optimizer", "rng_torch", "rng_python", "rng_numpy"})


def _read(folder: Path, rank: int) -> dict[str, Any]:
    record: dict[str, Any] = json.loads((folder / f"rank-{rank}.json").read_text())
    return record


def differences(reference: Path, other: Path, world_size: int) -> list[str]:
    """In words; empty if every loss and every part of the final state of every rank is bitwise the same in both folders."""
    found = []
    for rank in range(world_size):
        missing = [folder for folder in (reference, other) if not (folder / f"rank-{rank}.json").is_file()]
        if missing:
            found += [f"rank {rank}: nothing in {folder}" for folder in missing]
            continue
        found += [f"rank {rank}: {text}" for text in _compare(_read(reference, rank), _read(other, rank), rank)]
    return found


def _compare(reference: dict[str, Any], other: dict[str, Any], rank: int) -> list[str]:
    found = [f"says that it is rank {record['rank']}" for record in (reference, other) if record["rank"] != rank]
    losses, theirs = reference["losses"], other["losses"]
    if not losses:
        found.append("the reference has no losses")
    if len(losses) != len(theirs):
        found.append(f"{len(theirs)} losses and not {len(losses)}")
    wrong = [step for step, pair in enumerate(zip(losses, theirs), 1) if pair[0] != pair[1]]
    if wrong:
        found.append(f"{len(wrong)} losses differ, the first in step {wrong[0]}: {theirs[wrong[0] - 1]}")
    names = set(reference["state"]) | set(other["state"]) | _ALWAYS
    for name in sorted(names):
        pair = reference["state"].get(name), other["state"].get(name)
        if None in pair:
            found.append(f"{name} is missing")
        elif pair[0] != pair[1]:
            found.append(f"{name} differs")
    return found


def steps_done(folder: Path) -> int:
    """Number of losses that rank 0 has written down."""
    return len(_read(folder, 0)["losses"])
