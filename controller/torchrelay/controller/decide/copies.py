"""Which node keeps copies of another one's journals?"""

from __future__ import annotations

from collections.abc import Sequence


def choose_keeper(node: str, nodes: Sequence[str]) -> str:
    """The next one in the ring of `nodes`, which are those that are there; empty if there is no other."""
    ring = sorted({*nodes, node})
    following = ring[(ring.index(node) + 1) % len(ring)]
    return following if following != node else ""
