"""Hold long sequences and tables whose copies share what is not written to: a walk goes on from a state of thousands of objects.

Short ones are plain lists and dicts, which are quicker there.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import chain
from typing import Generic, Protocol, TypeVar, overload

T = TypeVar("T")
C = TypeVar("C", covariant=True)
_SHIFT = 7
PAGE = 1 << _SHIFT
"""Elements that are copied together, once one of them is written to."""
_MASK = PAGE - 1
_MANY = 2048
"""A sequence of so many elements is shared and not copied."""
_MOST_ABOVE = 1024
"""Changes of a table until it is copied as a whole."""
_GONE = -1


class Numbered(Protocol[T]):
    """The interface that lists and `Pages` have in common."""

    def __len__(self) -> int: ...
    def __getitem__(self, number: int, /) -> T: ...
    def __setitem__(self, number: int, value: T, /) -> None: ...
    def __iter__(self) -> Iterator[T]: ...
    def append(self, value: T, /) -> None: ...


class AnyNumbered(Protocol[C]):
    """The part of `Numbered` that sequences have, too."""

    def __getitem__(self, number: int, /) -> C: ...


class NumberTable(Protocol):
    """The interface that dicts of numbers and `Table` have in common."""

    def __len__(self) -> int: ...
    def __contains__(self, key: object, /) -> bool: ...
    def __getitem__(self, key: int, /) -> int: ...
    def __setitem__(self, key: int, place: int, /) -> None: ...
    def __delitem__(self, key: int, /) -> None: ...
    @overload
    def get(self, key: int, /) -> int | None: ...
    @overload
    def get(self, key: int, default: int, /) -> int: ...


class Pages(Generic[T]):
    """A list in pages. It takes no negative places, and nothing is taken out."""

    __slots__ = ("_length", "_own", "pages")

    def __init__(self, values: Iterable[T] = ()) -> None:
        found = list(values)
        self.pages = [found[at : at + PAGE] for at in range(0, len(found), PAGE)]
        self._length = len(found)
        self._own = set(range(len(self.pages)))
        """Pages that no copy shares."""

    def copy(self) -> Pages[T]:
        other: Pages[T] = Pages.__new__(Pages)
        other.pages = self.pages[:]
        other._length = self._length
        other._own = set()
        self._own.clear()
        return other

    def __len__(self) -> int:
        return self._length

    def __getitem__(self, number: int) -> T:
        return self.pages[number >> _SHIFT][number & _MASK]

    def __setitem__(self, number: int, value: T) -> None:
        page = number >> _SHIFT
        if page not in self._own:
            self.pages[page] = self.pages[page][:]
            self._own.add(page)
        self.pages[page][number & _MASK] = value

    def __iter__(self) -> Iterator[T]:
        return chain.from_iterable(self.pages)

    def append(self, value: T) -> None:
        page = self._length >> _SHIFT
        if page == len(self.pages):
            self.pages.append([])
            self._own.add(page)
        elif page not in self._own:
            self.pages[page] = self.pages[page][:]
            self._own.add(page)
        self.pages[page].append(value)
        self._length += 1


class Table:
    """Places from 0 on, by key. What has changed lies above what copies share."""

    __slots__ = ("_above", "_below", "_length")

    def __init__(self, below: dict[int, int]) -> None:
        """Begin with what lies in `below`, which is not written to from here on."""
        self._below = below
        self._length = len(below)
        self._above: dict[int, int] = {}

    def copy(self) -> Table:
        if len(self._above) > _MOST_ABOVE:
            return Table({key: place for key, place in (self._below | self._above).items() if place != _GONE})
        other = Table(self._below)
        other._above = self._above.copy()
        other._length = self._length
        return other

    def __len__(self) -> int:
        return self._length

    def __contains__(self, key: object) -> bool:
        place = self._above.get(key)  # type: ignore[call-overload]  # as a dict is asked
        return key in self._below if place is None else place != _GONE

    @overload
    def get(self, key: int) -> int | None: ...
    @overload
    def get(self, key: int, default: int) -> int: ...
    def get(self, key: int, default: int | None = None) -> int | None:
        place = self._above.get(key)
        if place is None:
            return self._below.get(key, default)
        return default if place == _GONE else place

    def __getitem__(self, key: int) -> int:
        """Return the place of the key. Raises KeyError."""
        place = self.get(key)
        if place is None:
            raise KeyError(key)
        return place

    def __setitem__(self, key: int, place: int) -> None:
        self._length += self.get(key) is None
        self._above[key] = place

    def __delitem__(self, key: int) -> None:
        """Take the key out. Raises KeyError."""
        self[key]
        self._length -= 1
        if key in self._below:
            self._above[key] = _GONE
        else:
            del self._above[key]


def copy_of(values: Numbered[T]) -> Numbered[T]:
    if isinstance(values, Pages):
        return values.copy()
    return Pages(values) if len(values) >= _MANY else list(values)


def copy_of_places(places: NumberTable) -> NumberTable:
    if isinstance(places, Table):
        return places.copy()
    assert isinstance(places, dict)
    return Table(places.copy()) if len(places) >= _MANY else places.copy()


def page_of(values: Numbered[T], number: int) -> list[T]:
    """Return the elements from `number * PAGE` on, as many as make a page."""
    if isinstance(values, Pages):
        return values.pages[number]
    assert isinstance(values, list)
    return values[number * PAGE : (number + 1) * PAGE]
