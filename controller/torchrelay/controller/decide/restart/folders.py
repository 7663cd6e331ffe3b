"""Where does a just-in-time checkpoint go, if not into the first folder?"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class FolderChoice:
    """`path` is empty if there is no folder left."""

    path: str
    reason: str


def choose_folder(folders: Sequence[str], refused: Mapping[str, str]) -> FolderChoice:
    """`folders`: in the order of preference. `refused`: those that could not be written, and why."""
    told = "; ".join(f"{folder}: {reason}" for folder, reason in refused.items())
    for folder in folders:
        if folder not in refused:
            return FolderChoice(folder, f"the checkpoint goes below {folder}" + (f", for {told}" if told else ""))
    return FolderChoice("", f"the checkpoint cannot be written to any folder of --jit-dir: {told}")
