"""Where data sets and data loaders come from: who has made each, and where a new process that makes it, too, has it.

Their content is not carried, so a new process has to know which of its own stands for which of the lost rank's. What set-up and
the present iterations of outer loops make each process has where it was first: training may have put it elsewhere since.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from torchrelay.shim.capture.values.by_identity import ByIdentity

Place = tuple[tuple[int, Any], ...]
"""The way to an object: a root's kind and key, then of each object on the way its kind, and the key in it."""


class Maker(enum.IntEnum):
    """Who has made a data set or a loader."""

    EACH_PROCESS = 0
    """Set-up, or the present iterations of outer loops: a new process makes it on its way to a step."""
    STEP = 1
    """A step: no new process makes it."""
    ITERATION = 2
    """An earlier iteration of an outer loop. A new process makes it only where its own iteration makes what it does not find."""


@dataclass(slots=True)
class Origin:
    maker: Maker
    number: int
    """What tells it apart from others of this rank, also in the processes that take it over; 0 until it has one."""
    seen_at: int
    """The rank's `mark` when it was first seen."""
    place: Place = ()
    """Where it was at the first head of the loop whose iteration has made it, or of the outermost one; empty if nobody knows."""
    content: Mapping[str, bytes] | None = None
    """Of what training has made, digests of what is not carried of it, by attribute; None as long as nobody has taken them."""


class DataOrigins:
    """The origins of data sets, of loaders, and of generators, which may hold some."""

    def __init__(self) -> None:
        self._known: ByIdentity[Origin] = ByIdentity()
        self.recorded: dict[int, Callable[[], Any]] = {}
        """What stands here for the lost rank's data, by the number that the origin had there."""
        self._noted = 0
        self.mark = 0
        """Grows with each that is noted: what is noted later than a loop's head has a higher one."""
        self.fresh_is_made = False
        """Whether training makes what is seen for the first time now: not at the first head of a loop."""
        self.of_loops: set[int] = set()
        """Iterators that running loops have made, by id: a new process makes these, and what they draw from, as its loops do."""

    def stand_ins(self) -> dict[int, Any]:
        """Return what stands for the lost rank's data, by the number that the origin had there."""
        found = {number: there() for number, there in self.recorded.items()}
        return {number: obj for number, obj in found.items() if obj is not None}

    def note(self, data: Iterable[Any], maker: Maker) -> None:
        """Note the origin of data sets and loaders that are not known yet, as seen now."""
        for obj in data:
            if not self._known.has(obj):
                self._noted += 1
                self.mark += 1
                self._known.put(obj, Origin(maker, self._noted, self.mark))

    def take_over(
        self,
        obj: Any,
        maker: Maker,
        seen_at: int,
        place: Place = (),
        number: int = 0,
        content: Mapping[str, bytes] | None = None,
    ) -> None:
        """Note an origin of the lost rank, whose order and numbers go on here. `number`: 0 for what it had not told apart."""
        if not self._known.has(obj):
            self.mark = max(self.mark, seen_at)
            self._noted = max(self._noted, number)
            self._known.put(obj, Origin(maker, number, seen_at, place, content))

    def number_rest(self) -> None:
        """Give a number to what was taken over without one. No more records of the lost rank are read from now on."""
        for origin in self._known.values():
            if origin.number == 0:
                self._noted += 1
                origin.number = self._noted

    def goes_on(self, mark: int) -> None:
        """Note that an outer loop begins its next iteration. What was first seen behind `mark` the one before has made."""
        for origin in self._known.values():
            if origin.maker is Maker.EACH_PROCESS and origin.seen_at > mark:
                origin.maker = Maker.ITERATION

    def is_of_step(self, after: int, until: int) -> None:
        """Note that a step has made what was first seen behind the mark `after`, up to `until`."""
        for origin in self._known.values():
            if origin.maker is Maker.EACH_PROCESS and after < origin.seen_at <= until:
                origin.maker = Maker.STEP

    def without_content(self) -> Iterator[tuple[Any, Origin]]:
        """Yield what training has made, and nobody knows the content of."""
        for obj in self._known.objects():
            origin = self._known.get(obj)
            if origin is not None and origin.maker is not Maker.EACH_PROCESS and origin.content is None:
                yield obj, origin

    def settle(self, places: Mapping[int, Place], mark: int) -> list[Any]:
        """Note where data is at a loop's first head. Return that of which it is news.

        `places`: by id. `mark`: that of the loop around it. What was seen before that one's head has its place already. Of what is
        not among `places` it is not known what a new process has there.
        """
        news = []
        for obj in self._known.objects():
            origin = self._known.get(obj)
            if origin is None or origin.maker is not Maker.EACH_PROCESS or origin.seen_at <= mark:
                continue
            place = places.get(id(obj), ())
            if origin.place != place:
                origin.place = place
                news.append(obj)
        return news

    def origin(self, obj: Any) -> Origin:
        """Return the origin of this data set or loader, noted or as it would be noted now."""
        return self._known.get(obj) or Origin(self.fresh(), 0, self.mark)

    def knows(self, obj: Any) -> bool:
        return self._known.has(obj)

    def fresh(self) -> Maker:
        """Return who makes what is seen for the first time now."""
        return Maker.STEP if self.fresh_is_made else Maker.EACH_PROCESS

    def maker(self, obj: Any) -> Maker:
        """Return who has made this data set or loader."""
        return self.origin(obj).maker

    def is_set_ups(self, obj: Any) -> bool:
        """Return whether a new process makes this data set or loader on its way, as far as is known."""
        return self.knows(obj) and not self.is_made(obj)

    def is_made(self, obj: Any) -> bool:
        """Return whether training has made this data set or loader."""
        return self.maker(obj) is not Maker.EACH_PROCESS

    def has_made(self, obj: Any) -> bool:
        """Return whether this is noted as made by training."""
        return self.knows(obj) and self.is_made(obj)
