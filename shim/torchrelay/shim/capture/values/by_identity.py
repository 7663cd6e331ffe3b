"""Keep what is known of objects of the script, by which object it is.

It asks none for a hash, and keeps none alive that has weak references.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Generic, TypeVar

from torchrelay.shim.adapters.tensors.own_refs import OwnRef

T = TypeVar("T")


def held(obj: Any) -> Callable[[], Any]:
    """Return a function that returns the object as long as it lives. One of a class without weak references is kept alive."""
    try:
        return OwnRef(obj)
    except TypeError:
        return lambda: obj


class ByIdentity(Generic[T]):
    """A table by object. An entry goes with its object."""

    def __init__(self) -> None:
        self._entries: dict[int, tuple[Callable[[], Any], T]] = {}

    def __len__(self) -> int:
        return len(self._entries)

    def get(self, obj: Any) -> T | None:
        entry = self._entries.get(id(obj))
        return entry[1] if entry is not None and entry[0]() is obj else None

    def has(self, obj: Any) -> bool:
        entry = self._entries.get(id(obj))
        return entry is not None and entry[0]() is obj

    def put(self, obj: Any, value: T) -> None:
        entries = self._entries
        key = id(obj)
        known = entries.get(key)
        if known is not None and known[0]() is obj:
            entries[key] = known[0], value
            return
        try:
            entries[key] = OwnRef(obj, lambda _: entries.pop(key, None)), value
        except TypeError:
            entries[key] = held(obj), value

    def pop(self, obj: Any) -> None:
        entry = self._entries.get(id(obj))
        if entry is not None and entry[0]() is obj:
            del self._entries[id(obj)]

    def objects(self) -> Iterator[Any]:
        """Yield the objects that live."""
        for there, _ in [*self._entries.values()]:
            obj = there()
            if obj is not None:
                yield obj

    def values(self) -> Iterator[T]:
        for _, value in [*self._entries.values()]:
            yield value
