"""Iterators of set-up that cannot be put to where they stood: a new process asks its own as often as the lost rank has.

Such as a generator that reads on in an object of C. How often training has asked is counted where the script asks, and the items
leave a mark. A new process must come to the same mark, so an iterator that something else asks as well, or that yields what
training's progress decides, ends the migration. One that nobody was seen to ask is not led.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from torchrelay.protocol.errors import StateMismatchError
from torchrelay.shim.capture.values.by_identity import ByIdentity
from torchrelay.shim.capture.values.item_mark import TakenItems


class LedIterator:
    def __init__(self) -> None:
        self.place = TakenItems(0, b"")
        """Of the items since set-up, as of where training stands."""
        self.is_led = False
        """Whether a walk has found that it cannot be put to where it stands."""
        self.uses_chance = False
        """Whether its draws use the process's random generators, which training leaves elsewhere by the time a new process asks."""

    def put(self, place: TakenItems) -> None:
        self.place = place


class LedIterators:
    def __init__(self) -> None:
        self._known: ByIdentity[LedIterator] = ByIdentity()
        self.in_set_up = True
        """Whether the first boundary is still to come, or is being taken: a new process has what there is now."""
        self._has_begun = False

    def meet(self, iterator: Any) -> None:
        """Count from now on, if it is one of set-up, how often the iterator is asked."""
        if self.in_set_up and not self._known.has(iterator):
            self._known.put(iterator, LedIterator())

    def forget(self, iterator: Any) -> None:
        """Count no more: the iterator has begun, and can be put to where it stands."""
        if not self.in_set_up and self._known:
            self._known.pop(iterator)

    def way_to(self, iterator: Any) -> LedIterator | None:
        """Return what is known of an iterator that cannot be put to where it stands; None if it is not led."""
        self.meet(iterator)
        known = self._known.get(iterator)
        if known is None or not known.place.number or known.uses_chance:
            return None
        known.is_led = True
        return known

    def has(self, iterator: Any) -> bool:
        known = self._known.get(iterator) if self._known else None
        return known is not None and known.is_led

    def known(self, iterator: Any) -> LedIterator | None:
        return self._known.get(iterator) if self._known else None

    def taken(self, known: LedIterator, item: Any) -> Callable[[], Callable[[], None]]:
        """Count an item, and return a maker of what does that again."""
        self._has_begun = self._has_begun or not known.place.number
        known.put(known.place.after(item))
        return functools.partial(_effect, known)

    def have_begun(self) -> bool:
        """Return whether one was asked for the first time since this was asked."""
        had, self._has_begun = self._has_begun, False
        return had

    def lead(self, iterator: Any, place: TakenItems) -> None:
        """Ask the iterator until it has come to a place. Raises StateMismatchError where it does not come there."""
        known = self._known.get(iterator)
        if known is None:
            known = LedIterator()
            self._known.put(iterator, known)
        for item in iterator if known.place.number < place.number else ():
            known.put(known.place.after(item))
            if known.place.number >= place.number:
                break
        if known.place != place:
            raise StateMismatchError(
                f"a {type(iterator).__name__} of set-up yields other items here: {known.place.number} were taken, and "
                f"{place.number} in the lost rank"
            )


def _effect(known: LedIterator) -> Callable[[], None]:
    return functools.partial(known.put, known.place)
