"""Tell which data sets and data loaders training has made. What set-up has made each process has."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from torchrelay.shim.capture.values.by_identity import ByIdentity


class MadeData:
    """The data sets and loaders of one outermost loop."""

    def __init__(self) -> None:
        self._of_set_up: ByIdentity[None] | None = None
        """The data sets and loaders of set-up; None before the loop's first boundary."""
        self.of_loops: set[int] = set()
        """Iterators that running loops have made, by id: a new process makes these, and what they draw from, as its loops do."""

    def set_up_is_over(self, data: Iterable[Any]) -> None:
        """Note the data sets and loaders that are there at the first boundary. At later ones nothing is noted."""
        if self._of_set_up is None:
            self._of_set_up = ByIdentity()
            for obj in data:
                self._of_set_up.put(obj, None)

    def is_made(self, obj: Any) -> bool:
        """Return whether training has made this data set or loader."""
        return self._of_set_up is not None and not self._of_set_up.has(obj)
