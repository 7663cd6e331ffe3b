"""What a new process is given of a lost rank at one place of the script."""

from __future__ import annotations

from typing import NamedTuple

from torchrelay.shim.journal import payload


class RecordedPlace(NamedTuple):
    """`loaders`: by node, where the iterators of data loaders stood; None where this process has drawn from them itself.

    `draw`: as last_draw.WrittenDraw, of the training loop's item. `is_passed`: the process goes on from here to where it enters,
    and is given all once more there. So what cannot be had yet stays away.
    """

    nodes: list[bytes]
    loaders: dict[int, payload.LoaderRecord] | None = None
    draw: payload.Plain | None = None
    is_passed: bool = False

    @classmethod
    def at_boundary(cls, journal: payload.BoundaryJournal) -> RecordedPlace:
        return cls(journal.nodes, journal.loaders, journal.links[-1].draw)
