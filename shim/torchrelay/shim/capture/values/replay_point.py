"""Iterators of frameworks that are state like any object: they have a place, and can be put to one."""

from __future__ import annotations

import abc
from typing import Any

ABSENT = object()
"""Stands where there is nothing."""


class ReplayPoint(abc.ABC):
    """Looks into the record of its draws by itself, whoever asks it; in a joiner it is put to the recorded place."""

    @abc.abstractmethod
    def place(self) -> dict[str, Any]:
        """Where it is: plain values, and objects that the walk goes on to. `iterator`: the loader's that it draws from, or None."""

    @abc.abstractmethod
    def begin_again(self, boundary: int) -> bool:
        """Goes back to its beginning, if it was there at that boundary: a beginning may communicate, and joiners begin for real."""

    @abc.abstractmethod
    def go_to(self, place: dict[str, Any], last: Any) -> None:
        """`last`: what the loader's iterator has yielded last, or ABSENT. Raises StateMismatchError where it cannot go."""
