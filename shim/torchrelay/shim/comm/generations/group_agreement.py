"""Whether ranks that come together are in the same process groups. Who connects a group waits for all of its members."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from typing import Any

from torchrelay.protocol.errors import StateMismatchError


def say(store: Any, rank: int, described: Iterable[Sequence[Any]]) -> None:
    """Say in the store which groups this rank is in. `described`: as process_group.described."""
    own = [(name, list(ranks)) for name, ranks, *_ in described]
    store.set(_key(rank), json.dumps(own))
    for name, ranks in own:
        store.add(_members_key(name, ranks), 1)


def incomplete(store: Any, described: Iterable[Sequence[Any]]) -> frozenset[str]:
    """Return the groups of this rank that another member does not have. To be asked once all ranks have said theirs.

    A rank may have destroyed a group that another one has still to finish with, or have made one already.
    """
    counted = ((name, len(ranks), store.add(_members_key(name, ranks), 0)) for name, ranks, *_ in described)
    return frozenset(name for name, members, there in counted if there != members)


def check(store: Any, rank: int, world_size: int) -> None:
    """Compare the groups of `rank` with what all others have said. Waits for them as long as the store does.

    Raises StateMismatchError where another rank is in a group with this one that it lacks, or that has other members here.
    """
    own = _said(store, rank)
    for other in range(world_size):
        if other == rank:
            continue
        theirs = _shared(_said(store, other), rank)
        for name in sorted(theirs):
            if theirs[name] != own.get(name):
                there = _members(theirs, name)
                here = _members(own, name)
                raise StateMismatchError(
                    f"process group {name!r} has {there} in rank {other}, and {here} in this process"
                )


def _key(rank: int) -> str:
    return f"groups/{rank}"


def _members_key(name: str, ranks: Iterable[int]) -> str:
    return f"members/{name}/{','.join(map(str, ranks))}"


def _said(store: Any, rank: int) -> dict[str, list[int]]:
    return dict(json.loads(store.get(_key(rank))))


def _shared(groups: dict[str, list[int]], rank: int) -> dict[str, list[int]]:
    return {name: ranks for name, ranks in groups.items() if rank in ranks}


def _members(groups: dict[str, list[int]], name: str) -> str:
    return f"ranks {', '.join(map(str, groups[name]))}" if name in groups else "no members"
