"""Tell which loaders with kept workers the script has dropped: their iterators need not be led anywhere."""

from __future__ import annotations

from collections.abc import Container, Mapping
from typing import Any, Protocol


class Track(Protocol):
    """What is known of a loader's iterator."""

    drawn: int

    @property
    def loader(self) -> Any: ...
    def keeps_workers(self) -> bool: ...


class DroppedLoaders:
    """The state of the boundary before still holds what the script dropped since, and so its workers live on for a step."""

    def __init__(self) -> None:
        self._led_to: set[int] = set()
        self._dropped: dict[int, int] = {}
        """By the id of an iterator, how often it had been drawn from when nothing led to its loader any more."""

    def created(self, iterator: Any, is_led_to: bool) -> None:
        """Note an iterator that is made now. `is_led_to`: whether the state of the latest boundary leads to its loader."""
        (self._led_to.add if is_led_to else self._led_to.discard)(id(iterator))
        self._dropped.pop(id(iterator), None)  # of one that is gone, at the same address

    def dropped(self, tracks: Mapping[Any, Track], led_to: Container[int]) -> set[int]:
        """Return the ids of iterators whose loader the state led to before, and does not now.

        One that has yielded something since is in use all the same. `led_to`: ids of what the state leads to now.
        """
        kept = {id(iterator): track for iterator, track in tracks.items() if track.keeps_workers()}
        now = {key for key, track in kept.items() if id(track.loader) in led_to}
        for key in self._led_to - now:
            if key in kept:
                self._dropped.setdefault(key, kept[key].drawn)
        self._led_to = now
        self._dropped = {
            key: drawn
            for key, drawn in self._dropped.items()
            if key in kept and key not in now and kept[key].drawn == drawn
        }
        return {*self._dropped}
