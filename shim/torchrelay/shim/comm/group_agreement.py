"""Whether a process that joins is in the same process groups as its peers. Who connects a group waits for all of its members."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from typing import Any

from torchrelay.protocol.errors import StateMismatchError


def say(store: Any, rank: int, described: Iterable[Sequence[Any]]) -> None:
    """`described`: as process_group.described."""
    store.set(_key(rank), json.dumps([(name, ranks) for name, ranks, *_ in described]))


def check(store: Any, rank: int, world_size: int) -> None:
    """Compare the groups of `rank` with what all others have said. Waits for them as long as the store does.

    Raises StateMismatchError where two ranks are not in the same groups with one another.
    """
    own = _said(store, rank)
    for other in range(world_size):
        if other == rank:
            continue
        theirs = _shared(_said(store, other), rank)
        ours = _shared(own, other)
        for name in sorted(theirs.keys() | ours.keys()):
            if theirs.get(name) != ours.get(name):
                there, here = _members(theirs, name), _members(ours, name)
                raise StateMismatchError(
                    f"process group {name!r} has {there} in rank {other}, and {here} in this process"
                )


def _key(rank: int) -> str:
    return f"groups/{rank}"


def _said(store: Any, rank: int) -> dict[str, list[int]]:
    return dict(json.loads(store.get(_key(rank))))


def _shared(groups: dict[str, list[int]], rank: int) -> dict[str, list[int]]:
    return {name: ranks for name, ranks in groups.items() if rank in ranks}


def _members(groups: dict[str, list[int]], name: str) -> str:
    return f"ranks {', '.join(map(str, groups[name]))}" if name in groups else "no members"
