"""Which data sets and data loaders training has made. What set-up and outer loops make on the way to a step each process makes."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from torchrelay.shim.capture.values.by_identity import ByIdentity


class MadeData:
    """Tells them apart by when they were first seen: data sets, loaders, and generators, which may hold some."""

    def __init__(self) -> None:
        self._known: ByIdentity[bool] = ByIdentity()
        self.fresh_is_made = False
        """Whether training makes what is seen for the first time now: not at the first head of a loop."""
        self.of_loops: set[int] = set()
        """Iterators that running loops have made, by id: a new process makes these, and what they draw from, as its loops do."""

    def note(self, data: Iterable[Any], *, made: bool) -> None:
        """Note of data sets and loaders that are not known yet whether training has made them."""
        for obj in data:
            if not self._known.has(obj):
                self._known.put(obj, made)

    def knows(self, obj: Any) -> bool:
        return self._known.has(obj)

    def has_made(self, obj: Any) -> bool:
        """Return whether this is noted as made by training."""
        return self._known.get(obj) is True

    def is_made(self, obj: Any) -> bool:
        """Return whether training has made this data set or loader."""
        known = self._known.get(obj)
        return self.fresh_is_made if known is None else known
