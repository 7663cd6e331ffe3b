"""What the ranks of two runs have left behind, compared bit for bit. Missing data is a difference, not an agreement."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any


def differences(reference: Path, other: Path, ranks: int) -> list[str]:
    """Return the differences in words; empty if every loss and every rank's whole final state are the same in both folders."""
    found = []
    for rank in range(ranks):
        ours = _read(reference, rank)
        theirs = _read(other, rank)
        if ours is None or theirs is None:
            found.append(f"rank {rank}: nothing was written in {'the reference' if ours is None else 'this run'}")
        else:
            found += [f"rank {rank}: {text}" for text in _compare(ours, theirs)]
    return found


def _read(folder: Path, rank: int) -> dict[str, Any] | None:
    try:
        record = json.loads((folder / f"rank-{rank}.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return record if isinstance(record, dict) else None


def _compare(ours: dict[str, Any], theirs: dict[str, Any]) -> list[str]:
    found = []
    losses = ours.get("losses") or []
    other = theirs.get("losses") or []
    if not losses or not ours.get("state"):
        found.append("the reference has no losses or no state")
    if len(losses) != len(other):
        found.append(f"{len(other)} losses and not {len(losses)}")
    wrong = [i for i, pair in enumerate(zip(losses, other)) if pair[0] != pair[1]]
    if wrong:
        first = wrong[0]
        was = float.fromhex(losses[first])
        now = float.fromhex(other[first])
        found.append(
            f"{len(wrong)} of {len(losses)} losses differ, the first is number {first + 1}: {now!r} for {was!r}"
        )
    state = ours.get("state") or {}
    other_state = theirs.get("state") or {}
    for name in sorted(state.keys() | other_state.keys()):
        if name not in state or name not in other_state:
            found.append(f"{name} is missing")
        elif state[name] != other_state[name]:
            found.append(f"{name} differs")
    return found
