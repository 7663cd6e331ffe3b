"""Describe iterators of frameworks that are state like any object: they have a place, and can be put to one."""

from __future__ import annotations

import abc
from typing import Any

ABSENT = object()
"""Stands where there is nothing."""


class ReplayPoint(abc.ABC):
    """An iterator that looks into the record of its draws by itself, whatever draws from it.

    In a joiner it is put to the recorded place.
    """

    @abc.abstractmethod
    def place(self) -> dict[str, Any]:
        """Return where it is: plain values, and objects that the walk goes on to. `iterator`: its loader's iterator, or None."""

    @abc.abstractmethod
    def begin_again(self, boundary: int) -> bool:
        """Go back to its beginning, if it was there at that boundary. Return whether it was.

        A beginning may communicate, and joiners begin for real.
        """

    @abc.abstractmethod
    def go_to(self, place: dict[str, Any], last: Any) -> None:
        """Put it to a place.

        `last`: what the loader's iterator has yielded last, or ABSENT. Raises StateMismatchError where it cannot go.
        """
