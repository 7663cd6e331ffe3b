"""Iterators of set-up that cannot be put to where they stood: a new process asks its own as often as the lost rank has.

Such as a generator that reads on in an object of C. How often training has asked is counted where the script asks, and the items
leave a mark. A new process must come to the same mark, so one that yields what training's progress decides ends the migration. One
that nobody was seen to ask is not led, nor is one that something else was seen to ask, or that does not show whether it was asked.
"""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Callable, Iterable
from typing import Any

from torchrelay.protocol.errors import StateMismatchError
from torchrelay.shim.adapters.cpython import frames, plain_iterators
from torchrelay.shim.capture.values import callables
from torchrelay.shim.capture.values.alike import alike
from torchrelay.shim.capture.values.by_identity import ByIdentity
from torchrelay.shim.capture.values.item_mark import TakenItems
from torchrelay.shim.capture.values.kinds import PLAIN, Kind, kind_of

_COUNTED = 16
"""So many boundaries it is counted how often an iterator is asked that can be put to where it stands: what it draws from may turn
out to be beyond capture."""


class LedIterator:
    def __init__(self) -> None:
        self.place = TakenItems(0, b"")
        """Of the items since set-up, as of where training stands."""
        self.may_be_led = False
        """Whether a new process can be led to its place, as of the latest boundary."""
        self.is_led = False
        """Whether a walk has found that it cannot be put to where it stands."""
        self.is_wanted = False
        """Whether what it draws from cannot be captured, though the iterator itself can be put to where it stands."""
        self.uses_chance = False
        """Whether its draws use the process's random generators, which training leaves elsewhere by the time a new process asks."""
        self.is_asked_elsewhere = False
        self.is_asked_itself = False
        """Whether training has asked the iterator, and not only others that draw from it."""
        self.binds_outside = False
        """Whether its code binds variables of a function around it, which a step that is done again cannot be given."""
        self._shown: list[Any] | None = None
        """What it showed behind the latest item."""

    def put(self, place: TakenItems) -> None:
        self.place = place

    def was_asked(self, iterator: Any) -> None:
        """Note what the iterator shows behind an item. If that is what it showed before, it shows nothing."""
        now = _shown(iterator)
        if self._shown is not None and _are_same(now, self._shown):
            self.is_asked_elsewhere = True
        self._shown = now

    def settle(self, iterator: Any) -> bool:
        """Settle whether it may be led until the next boundary. Return whether that is another answer than before."""
        if self._shown is not None and not _are_same(_shown(iterator), self._shown):
            self.is_asked_elsewhere = True
        before = self.may_be_led
        is_barred = self.uses_chance or self.is_asked_elsewhere or self.binds_outside
        self.may_be_led = bool(self.place.number) and not is_barred
        return before != self.may_be_led


class LedIterators:
    def __init__(self, sources_of: Callable[[Any], list[Any]] = lambda iterator: []) -> None:
        """`sources_of(iterator)`: returns what the iterator draws from."""
        self._sources_of = sources_of
        self._known: ByIdentity[LedIterator] = ByIdentity()
        self.in_set_up = True
        """Whether the first boundary is still to come, or is being taken: a new process has what there is now."""
        self._boundaries = 0
        self._asked_for: set[int] = set()
        self._below: dict[int, Any] = {}
        """What wanted iterators draw from, by id: that is where they lead it."""

    def meet(self, iterator: Any) -> None:
        """Count from now on, if it is one of set-up, how often the iterator is asked."""
        if self.in_set_up and not self._known.has(iterator):
            known = LedIterator()
            is_generator = kind_of(type(iterator)) is Kind.GENERATOR
            known.binds_outside = is_generator and callables.rebinds(iterator.gi_code)
            self._known.put(iterator, known)

    def forget(self, iterator: Any) -> None:
        """Count no more: the iterator has begun, and can be put to where it stands, as the first steps have shown."""
        if self._boundaries > _COUNTED and self._known:
            self._known.pop(iterator)

    def want(self, drawn_from: Iterable[Any]) -> None:
        """Let iterators be led that draw from these objects, which hold what cannot be captured: from the next boundary on."""
        wanted = {*map(id, drawn_from)}
        if not wanted or wanted == self._asked_for:
            return
        self._asked_for = wanted
        for iterator in self._known.objects():
            known = self._known.get(iterator)
            if known is not None and not known.is_wanted:
                known.is_wanted = not wanted.isdisjoint(map(id, self._sources_of(iterator)))

    def want_itself(self, iterator: Any) -> None:
        """Let the iterator be led, since asking it takes in what others send."""
        known = self._known.get(iterator)
        if known is not None:
            known.is_wanted = True

    def is_wanted(self, iterator: Any) -> bool:
        known = self._known.get(iterator) if self._below else None
        return known is not None and known.is_wanted

    def is_below(self, obj: Any) -> bool:
        """Return whether a wanted iterator draws from the object, which is where that leads it."""
        return id(obj) in self._below

    def way_to(self, iterator: Any) -> LedIterator | None:
        """Return what is known of an iterator that cannot be put to where it stands; None if it is not led."""
        self.meet(iterator)
        known = self._known.get(iterator)
        if known is None or not known.may_be_led:
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
        known.put(known.place.after(item))
        return functools.partial(_effect, known)

    def at_boundary(self) -> bool:
        """Settle which ones may be led until the next boundary. Return whether these are others than before."""
        self._boundaries += 1
        is_other = False
        below: dict[int, Any] = {}
        led = []
        for iterator in self._known.objects():
            known = self._known.get(iterator)
            if known is not None and (known.is_wanted or known.is_led):
                led.append((iterator, known, self._sources_of(iterator)))
            if known is not None and known.is_wanted:
                below.update((id(source), source) for source in self._sources_of(iterator))
        self._bar_shared(led)
        for iterator in self._known.objects():
            known = self._known.get(iterator)
            if known is not None and known.settle(iterator):
                is_other = True
        is_other = is_other or below.keys() != self._below.keys()
        self._below = below
        return is_other

    def _bar_shared(self, led: list[tuple[Any, LedIterator, list[Any]]]) -> None:
        """Bar iterators that draw from what another one, or the script itself, draws from: nobody knows in which order."""
        inner = {id(source) for _, _, sources in led for source in sources}
        outermost = [sources for iterator, _, sources in led if id(iterator) not in inner]
        numbers = Counter(id(source) for sources in outermost for source in sources)
        for _, known, sources in led:
            for source in sources:
                own = self._known.get(source)
                if numbers[id(source)] > 1 or (own is not None and own.is_asked_itself):
                    known.is_asked_elsewhere = True

    def lead(self, iterator: Any, place: TakenItems) -> None:
        """Ask the iterator until it has come to a place. Raises StateMismatchError where it does not come there."""
        known = self._known.get(iterator)
        if known is None:
            known = LedIterator()
            self._known.put(iterator, known)
        known.may_be_led = True
        for item in iterator if known.place.number < place.number else ():
            known.put(known.place.after(item))
            if known.place.number >= place.number:
                break
        if known.place != place:
            raise StateMismatchError(
                f"a {type(iterator).__name__} of set-up yields other items here: {known.place.number} were taken, and "
                f"{place.number} in the lost rank"
            )


def _shown(iterator: Any) -> list[Any]:
    """Return what tells where an iterator stands, as far as it can be seen: the place in a generator's code, and its variables."""
    if kind_of(type(iterator)) is Kind.GENERATOR:
        frame = iterator.gi_frame
        return [] if frame is None else [frame.f_lasti, *frames.read_locals(frame).values()]
    place = plain_iterators.read(iterator)
    return [] if place is None else [*place.numbers, *place.held.values()]


def _are_same(one: list[Any], other: list[Any]) -> bool:
    return len(one) == len(other) and all(a is b or (type(a) in PLAIN and alike(a, b)) for a, b in zip(one, other))


def _effect(known: LedIterator) -> Callable[[], None]:
    return functools.partial(known.put, known.place)
