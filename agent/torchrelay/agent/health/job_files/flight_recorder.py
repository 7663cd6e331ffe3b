"""Finds the rank that the others waited for, by the dumps that PyTorch's flight recorder writes when a collective times out.

Leans on the dump's form in torch 2.4 to 2.13: a pickle of plain values, `entries` with `process_group`, `collective_seq_id`,
`profiling_name` and `state`, in files whose names end with the rank. Nothing but plain values is unpickled.
"""

from __future__ import annotations

import io
import logging
import pickle
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

log = logging.getLogger(__name__)

_NAME = re.compile(r"(?:trace|rank|dump)\D*(\d+)$")
MAX_BYTES = 256 << 20


@dataclass(frozen=True)
class Behind:
    rank: int
    reason: str


class Dumps:
    """The dumps of one incident, as they are written."""

    def __init__(self) -> None:
        self._by_rank: dict[int, dict[str, Any]] = {}

    def take(self, path: Path) -> Behind | None:
        """Read a file if it is a dump. Return which rank is behind, as far as the dumps so far tell."""
        found = _NAME.search(path.name)
        if found is None:
            return None
        try:
            dump = read_dump(path)
        except (OSError, pickle.UnpicklingError, ValueError, EOFError) as e:
            log.debug("%s is no dump of the flight recorder: %s", path, e)
            return None
        self._by_rank[int(found[1])] = dump
        return who_is_behind(self._by_rank)


class _PlainOnly(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        raise pickle.UnpicklingError(f"a dump has plain values only, not {module}.{name}")


def read_dump(path: Path) -> dict[str, Any]:
    """Read a dump. Raises OSError, UnpicklingError for anything but plain values, ValueError for a file that is no dump."""
    if path.stat().st_size > MAX_BYTES:
        raise ValueError(f"larger than {MAX_BYTES} bytes")
    dump = _PlainOnly(io.BytesIO(path.read_bytes())).load()
    if not isinstance(dump, dict) or not isinstance(dump.get("entries"), list):
        raise ValueError("no entries")
    return dump


def who_is_behind(dumps: Mapping[int, dict[str, Any]]) -> Behind | None:
    """Return the rank whose last collective of a group is the furthest behind; None while all are level."""
    last: dict[str, dict[int, tuple[int, str]]] = {}
    for rank, dump in dumps.items():
        for entry in dump["entries"]:
            sequence = entry.get("collective_seq_id")
            if isinstance(sequence, int):
                group = str(entry.get("process_group", entry.get("pg_id", "")))
                known = last.setdefault(group, {}).get(rank, (-1, ""))
                last[group][rank] = max(known, (sequence, str(entry.get("profiling_name", ""))))
    behind = []
    for group, ranks in last.items():
        ahead = max(ranks.values())
        for rank, (sequence, name) in ranks.items():
            if sequence < ahead[0]:
                text = f"rank {rank} last began collective {sequence} ({name}) of group {group}, others {ahead[0]} ({ahead[1]})"
                behind.append((ahead[0] - sequence, Behind(rank, text)))
    return max(behind, key=lambda b: b[0], default=(0, None))[1]
