"""Tells, where all ranks wait for each other, whether it is the network: which connections are dead, and which rank is cut off.

The two ends of a connection know each other's address. A pair of ranks is apart where a connection between them is dead and none
lives. Only their links to other ranks can tell which of the two is to blame.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations

from torchrelay.controller.config import Policy
from torchrelay.protocol.messages import LinkState

Pair = tuple[int, int]
PeerLinks = Mapping[int, Sequence[LinkState] | None]
"""What each rank sees of its connections; None until it was looked at."""

ANSWERED_S = 2.0
"""A rank that is asked every second has answered within this time, if it can be reached."""


@dataclass(frozen=True)
class CutOff:
    rank: int
    unanswered_s: float
    reason: str


@dataclass(frozen=True)
class _Between:
    """All connections between two ranks: the longest silence of one that is dead, and whether another one lives."""

    unanswered_s: float
    lives: bool


def have_been_probed(links: PeerLinks, policy: Policy) -> bool:
    """Return whether the connections have been probed for so long that a rank that is cut off would have shown."""
    return all(
        seen is not None and all(link.probed_s >= policy.link_dead_s for link in seen) for seen in links.values()
    )


def cut_off(links: PeerLinks, policy: Policy) -> CutOff | None:
    """Return the rank whose loss would explain best which ranks are apart.

    None where no ranks are apart, or where no rank reaches another one.
    """
    if all(link.unanswered_s < policy.link_dead_s for seen in links.values() for link in seen or ()):
        return None  # the usual case, for which nothing has to be matched
    between = _between(links, policy)
    apart = {pair: b.unanswered_s for pair, b in between.items() if _is_apart(b, policy)}
    if not apart:
        return None
    count = Counter(rank for pair in apart for rank in pair)
    most = max(count.values())
    rank = max(r for r in count if count[r] == most)
    if len(links) > 2 and not any(b.lives for pair, b in between.items() if rank not in pair):
        return None
    unanswered_s = min(s for pair, s in apart.items() if rank in pair)
    certain = sum(1 for n in count.values() if n == most) == 1
    reason = _certain(rank, apart, unanswered_s) if certain else _uncertain(rank, apart, unanswered_s)
    return CutOff(rank, unanswered_s, reason)


def _is_apart(between: _Between, policy: Policy) -> bool:
    return between.unanswered_s >= (policy.link_alone_s if between.lives else policy.link_dead_s)


def _between(links: PeerLinks, policy: Policy) -> dict[Pair, _Between]:
    by_ends = {(link.local, link.remote): (rank, link) for rank, seen in links.items() for link in seen or ()}
    found: dict[Pair, list[_Between]] = {pair: [] for pair in combinations(sorted(links), 2)}
    for (local, remote), (rank, link) in by_ends.items():
        peer, other = by_ends.get((remote, local), (rank, link))
        if rank < peer:
            found[rank, peer].append(_connection((link, other), policy))
    return {
        pair: _Between(max(b.unanswered_s for b in each), any(b.lives for b in each))
        for pair, each in found.items()
        if each
    }


def _connection(ends: Sequence[LinkState], policy: Policy) -> _Between:
    """Judge a connection by both of its ends: one may hear of the other what the other does not hear of it."""
    unanswered_s = max(end.unanswered_s for end in ends)
    answered = any(end.silent_s < ANSWERED_S <= end.probed_s for end in ends)
    return _Between(unanswered_s, answered and unanswered_s < policy.link_dead_s)


def _certain(rank: int, apart: Mapping[Pair, float], unanswered_s: float) -> str:
    peers = sorted({r for pair in apart if rank in pair for r in pair} - {rank})
    more = [pair for pair in apart if rank not in pair]
    others = f"; {_pairs(more)} do not reach each other either" if more else "; the others reach each other"
    to = f"rank {peers[0]}" if len(peers) == 1 else f"ranks {', '.join(map(str, peers))}"
    return f"rank {rank}'s connections to {to} have not been answered for {unanswered_s:.1f} s while all ranks wait{others}"


def _uncertain(rank: int, apart: Mapping[Pair, float], unanswered_s: float) -> str:
    return (
        f"{_pairs(sorted(apart))} have not answered each other for {unanswered_s:.1f} s while all ranks wait; "
        f"which end is to blame cannot be told: it is rank {rank} that is replaced"
    )


def _pairs(pairs: Sequence[Pair]) -> str:
    return ", ".join(f"ranks {a} and {b}" for a, b in pairs)
