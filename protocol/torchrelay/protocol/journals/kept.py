"""Where a rank's copies of its own state lie, for the shim that writes them and the agent that finds them.

Standard library only. Below a node's folder, on a memory file system, each rank has two folders, of which it fills the older one:
`rank-3/0` and `rank-3/1`; what a rank keeps for rank 3 of another node is in `buddy-of-3/0` and `1`. In one lie the journal
of the boundary, the recording of the set-up and the bucket layouts, each behind a header as in `journal`, and the tensors
(see the shim's `kept_tensors`), whose list is written last and taken away first: without it the copy is not whole.
"""

from __future__ import annotations

import re
import shutil
from dataclasses import dataclass
from pathlib import Path

from torchrelay.protocol.journals.journal import read_slot, write_slot
from torchrelay.protocol.machine.private import make_below

COPIES_AS_NEEDED = -1
"""In place of the steps between two copies: only where a rank's tensors are nobody else's, and as often as that costs little."""
SLOTS = 2
"""While one is filled, the other is whole."""
WHOLE = "tensors.json"
_JOURNAL = "journal"
_SET_UP = "set-up"
_LAYOUT = "layout"
_WHOSE = re.compile(r"(?:rank|buddy-of)-(\d+)")


@dataclass(frozen=True)
class KeptParts:
    """All parts of a copy except its tensors."""

    boundary: int
    journal: bytes
    set_up: bytes
    ddp_layout: str


def own_folder(kept: Path, rank: int) -> Path:
    """Return the folder of a rank's copies of its own state."""
    return kept / f"rank-{rank}"


def buddy_folder(kept: Path, rank: int) -> Path:
    """Return the folder of the copies that this node keeps for a rank of another node."""
    return kept / f"buddy-of-{rank}"


def own_at_head_folder(kept: Path, rank: int) -> Path:
    """Return the folder of a rank's copies, made at each head, of the tensors that no other rank holds."""
    return kept / f"own-{rank}"


def root_of(slot: Path) -> Path:
    """Return the node's folder that the slot is in."""
    return slot.parent.parent


class Slots:
    """The two folders below `folder`, for their only writer. A later process finds the whole copies of an earlier one."""

    def __init__(self, folder: Path) -> None:
        self._places = tuple(folder / str(number) for number in range(SLOTS))
        self._whole = {place: parts.boundary for place in self._places if (parts := read_parts(place)) is not None}

    def boundaries(self) -> set[int]:
        """Return the boundaries of the whole copies."""
        return set(self._whole.values())

    def open(self, boundary: int) -> Path:
        """Return a folder for a copy of `boundary`: where an earlier copy of it lies, or else the older one. Raises OSError."""
        place = min(self._places, key=lambda p: (self._whole.get(p) != boundary, self._whole.get(p, -1)))
        self._whole.pop(place, None)
        open_slot(place)
        return place

    def filled(self, place: Path, boundary: int) -> None:
        """Note that the copy in `place` is whole."""
        self._whole[place] = boundary

    def forget(self, after: int) -> None:
        """Make copies of boundaries later than `after` invalid. Raises OSError."""
        for place in [p for p, boundary in self._whole.items() if boundary > after]:
            del self._whole[place]
            open_slot(place)

    def drop(self) -> None:
        """Give the memory of all copies back to the system."""
        self._whole.clear()
        for place in self._places:
            shutil.rmtree(place, ignore_errors=True)


def open_slot(folder: Path) -> None:
    """Make the folder, and mark that it holds no whole copy from now on. Raises OSError."""
    make_below(root_of(folder), folder)
    (folder / WHOLE).unlink(missing_ok=True)


def write_parts(folder: Path, parts: KeptParts) -> None:
    """Write all parts but the tensors. Raises OSError, JournalError."""
    for name, data in (
        (_JOURNAL, parts.journal),
        (_SET_UP, parts.set_up),
        (_LAYOUT, parts.ddp_layout.encode()),
    ):
        write_slot(folder / name, parts.boundary, data, root_of(folder))


def read_parts(folder: Path) -> KeptParts | None:
    """Read all parts but the tensors. Return None if the folder holds no whole copy."""
    if not (folder / WHOLE).exists():
        return None
    found = [read_slot(folder / name) for name in (_JOURNAL, _SET_UP, _LAYOUT)]
    journal, set_up, layout = found
    if journal is None or set_up is None or layout is None or len({slot[0] for slot in (journal, set_up, layout)}) > 1:
        return None
    return KeptParts(journal[0], journal[1], set_up[1], layout[1].decode())


def whole_copies(kept: Path) -> dict[int, list[tuple[Path, KeptParts]]]:
    """Return the whole copies below a node's folder, by rank."""
    found: dict[int, list[tuple[Path, KeptParts]]] = {}
    for folder in sorted(kept.glob("*/[0-9]")):
        whose = _WHOSE.fullmatch(folder.parent.name)
        parts = read_parts(folder) if whose else None
        if whose and parts is not None:
            found.setdefault(int(whose[1]), []).append((folder, parts))
    return found
