"""Look at long lists of plain values, such as a history of losses, as a whole, and write them down in parts that are kept.

A list like that grows with the run. So what was seen of it before is recognised by identity, at the speed of memory, and its values
are checked and pickled once.
"""

from __future__ import annotations

import pickle
from dataclasses import dataclass, field
from typing import Any

from torchrelay.shim.adapters.raw_memory.list_pointers import start_alike
from torchrelay.shim.capture.values.kinds import PLAIN

LONG = 512
_PART = 1024


@dataclass
class _Seen:
    """`values` holds the elements, so that their addresses stay theirs. `parts`: whole parts, pickled."""

    obj: list[Any]
    values: list[Any] = field(default_factory=list)
    parts: list[bytes] = field(default_factory=list)


@dataclass(frozen=True)
class LongContent:
    """The first `length` values; more may have been seen since."""

    seen: _Seen
    length: int
    same_as_before: bool = False
    """Whether, at a gate, the list is unchanged since the boundary, whose journal has it."""

    def is_in(self, items: list[Any]) -> bool:
        """Return whether the list holds just these values now."""
        return len(items) == self.length and start_alike(items, self.seen.values, self.length)

    def values(self) -> list[Any]:
        return self.seen.values[: self.length]

    def encoded(self) -> tuple[tuple[bytes, ...], list[Any]]:
        """Return whole parts, and the values behind them."""
        whole = self.length // _PART
        parts = self.seen.parts
        while len(parts) < whole:
            start = len(parts) * _PART
            parts.append(pickle.dumps(self.seen.values[start : start + _PART], pickle.HIGHEST_PROTOCOL))
        return tuple(parts[:whole]), self.seen.values[whole * _PART : self.length]


def _is_plain(value: Any) -> bool:
    return type(value) in PLAIN or (type(value) is tuple and all(map(_is_plain, value)))


def decoded(parts: tuple[bytes, ...], rest: list[Any]) -> list[Any]:
    return [value for part in parts for value in pickle.loads(part)] + rest


class LongLists:
    """The lists seen so far, by identity."""

    def __init__(self) -> None:
        self._seen: dict[int, _Seen] = {}

    def look(self, obj: list[Any]) -> LongContent | None:
        """Return the list's content; None for a list that holds something else than plain values."""
        seen = self._seen.get(id(obj))
        known = len(seen.values) if seen is not None else 0
        if seen is None or seen.obj is not obj or not start_alike(obj, seen.values, known):
            if not all(map(_is_plain, obj)):
                self._seen.pop(id(obj), None)
                return None
            seen = self._seen[id(obj)] = _Seen(obj, list(obj))
        elif len(obj) > known:
            new = obj[known:]
            if not all(map(_is_plain, new)):
                del self._seen[id(obj)]
                return None
            seen.values += new
        return LongContent(seen, len(obj))
