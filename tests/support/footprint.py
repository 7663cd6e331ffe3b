"""What the processes of a running job hold: memory, descriptors, threads, and files in temporary folders and shared memory."""

from __future__ import annotations

import os
import re
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

SHARED = Path("/dev/shm")
PARTS = ("torchrelay.controller", "torchrelay.agent")
HANDS_BACK = {"MALLOC_ARENA_MAX": "1", "MALLOC_MMAP_THRESHOLD_": "262144"}
"""With these variables what a process has freed goes back to the system at once, and is not taken for growth: else glibc keeps the
room of a journal for minutes after it was sent (4 to 5 MiB were seen), and some 120 MiB after many large messages, and no more
after many more."""


@dataclass(frozen=True)
class Footprint:
    """Of one process. `anonymous_bytes`: of its own, without files and shared memory."""

    pid: int
    anonymous_bytes: int
    descriptors: int
    threads: int


def footprint(pid: int) -> Footprint | None:
    """None where it has ended."""
    with suppress(OSError):
        rollup = Path(f"/proc/{pid}/smaps_rollup").read_text()
        anonymous = re.search(r"^Anonymous:\s+(\d+) kB", rollup, re.M)
        threads = len(os.listdir(f"/proc/{pid}/task"))
        if anonymous is not None:
            return Footprint(pid, int(anonymous[1]) << 10, len(os.listdir(f"/proc/{pid}/fd")), threads)
    return None


def parts_of(command_pid: int) -> dict[str, Footprint]:
    """Controller and agent of a running command, by their names."""
    found = {}
    for pid in children_of(command_pid):
        with suppress(OSError):
            words = Path(f"/proc/{pid}/cmdline").read_bytes().decode(errors="replace").split("\0")
            for part in PARTS:
                if part in words and (held := footprint(pid)) is not None:
                    found[part.rpartition(".")[2]] = held
    return found


def children_of(pid: int) -> list[int]:
    children = []
    with suppress(OSError):
        for tid in os.listdir(f"/proc/{pid}/task"):
            children += [int(c) for c in Path(f"/proc/{pid}/task/{tid}/children").read_text().split()]
    return children


def files_left(*folders: Path) -> set[str]:
    """Everything in these folders, down to the last file."""
    return {str(p) for top in folders if top.exists() for p in (top, *top.rglob("*"))}


def shared_memory_of(agent_pid: int) -> list[Path]:
    """The folders in shared memory that belong to a run, by what its agent has mapped there."""
    with suppress(OSError):
        mapped = Path(f"/proc/{agent_pid}/maps").read_text()
        return [SHARED / name for name in sorted(set(re.findall(rf"{SHARED}/(torchrelay[^/\n]*)/", mapped)))]
    return []
