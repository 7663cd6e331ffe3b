"""Which node keeps copies of another one's journals?"""

from __future__ import annotations

from collections.abc import Mapping, Sequence


def choose_keeper(node: str, nodes: Sequence[str], machines: Mapping[str, str]) -> str:
    """Of `nodes`, which are those that are there: the one in the same place on the next machine; empty if there is no other.

    `machines`: node -> the machine that it is on; one that is not known is its own. With its machine a node would lose copies
    that are there, too: the next node on the same one is taken only where there is no other.
    """
    everybody = sorted({*nodes, node})
    on: dict[str, list[str]] = {}
    for each in everybody:
        on.setdefault(machines.get(each, each), []).append(each)
    own = machines.get(node, node)
    ring = sorted(on)
    if len(ring) == 1:
        following = everybody[(everybody.index(node) + 1) % len(everybody)]
        return following if following != node else ""
    there = on[ring[(ring.index(own) + 1) % len(ring)]]
    return there[on[own].index(node) % len(there)]
