from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from torchrelay.shim.journal.dropped_loaders import DroppedLoaders


class Iterator_:
    """Stands for the iterator of a loader."""


@dataclass
class Track:
    loader: object = field(default_factory=object)
    drawn: int = 0

    def keeps_workers(self) -> bool:
        return True


def tracks_of(**tracks: Track) -> tuple[dict[str, Iterator_], dict[Any, Track]]:
    iterators = {name: Iterator_() for name in tracks}
    return iterators, {iterators[name]: track for name, track in tracks.items()}


def test_a_loader_that_the_state_led_to_and_leads_to_no_more_is_dropped() -> None:
    old, new = Track(), Track()
    iterators, tracks = tracks_of(old=old, new=new)
    loaders = DroppedLoaders()
    assert loaders.dropped(tracks, {id(old.loader)}) == set()
    old.drawn = 7  # behind the latest boundary
    assert loaders.dropped(tracks, {id(new.loader)}) == {id(iterators["old"])}
    assert loaders.dropped(tracks, {id(new.loader)}) == {id(iterators["old"])}
    del tracks[iterators["old"]]
    assert loaders.dropped(tracks, {id(new.loader)}) == set()


def test_so_is_one_that_was_drawn_from_between_two_boundaries_alone() -> None:
    """An evaluation's: its loader was there at the boundary before."""
    iterators, tracks = tracks_of(evaluation=Track(), hidden=Track())
    loaders = DroppedLoaders()
    loaders.dropped({}, set())
    loaders.created(iterators["evaluation"], True)
    loaders.created(iterators["hidden"], False)
    assert loaders.dropped(tracks, set()) == {id(iterators["evaluation"])}


def test_one_that_was_never_in_sight_is_not_nor_one_that_yields_again_or_comes_back() -> None:
    hidden, used = Track(), Track()
    iterators, tracks = tracks_of(hidden=hidden, used=used)
    loaders = DroppedLoaders()
    loaders.dropped(tracks, {id(used.loader)})
    assert loaders.dropped(tracks, set()) == {id(iterators["used"])}
    used.drawn += 1
    assert loaders.dropped(tracks, set()) == set()
    loaders.dropped(tracks, {id(used.loader)})
    assert loaders.dropped(tracks, set()) == {id(iterators["used"])}
    assert loaders.dropped(tracks, {id(used.loader)}) == set()
