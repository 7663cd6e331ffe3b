"""Tells whether ranks that have held the same before a migration still do after it. Pure.

Only what was equal counts, at all the boundaries that are known: ranks that average now and then, and statistics that each rank has
of its own data, differ at some of them. Ranks that differ in what a wrapper is to keep equal train apart from each other: what else
they hold alike they hold so by chance, until the difference has spread to it. So do ranks that differ in anything but small buffers
where there is no wrapper: the script averages gradients by hand, and each rank rounds otherwise what it adds to its weights and
takes away again. And so do ranks of which each keeps another buffer of the same module for itself: a mask may be equal as long as
what it is made of lies on the same side of a threshold. A tensor that a forward has made of other tensors has what the latest
forward has left there, and a rank may evaluate alone.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from torchrelay.protocol.messages import ReplicaCheck

SEEN_EQUAL = 2
"""Boundaries after an update at which ranks have to have held the same; one is enough for a tensor that a wrapper keeps equal."""

Alike = Mapping[str, Sequence[frozenset[int]]]
"""Path of a tensor -> groups of ranks that hold the same there."""


@dataclass(frozen=True)
class Apart:
    """Ranks that hold the same no more. `ranks`: those that held the same; `path`: the first of `count` tensors that differ now."""

    ranks: tuple[int, ...]
    path: str
    count: int
    boundary: int

    def reason(self) -> str:
        named = ", ".join(map(str, self.ranks))
        more = f" and {self.count - 1} more" if self.count > 1 else ""
        return (
            f"after a migration, ranks {named} differ in {self.path}{more} after step {self.boundary}, "
            "which they held alike before it"
        )


def alike(checks: Mapping[int, Iterable[ReplicaCheck]], before: int, *, unwritten: bool) -> Alike:
    """Return the groups of ranks that held the same at each boundary that all ranks have told of.

    Only boundaries before `before` speak for that. Later ones, from which ranks have gone back, can only speak against it.
    `unwritten`: with tensors that were equal since no rank had written to them. Once one does, each rank may write something of its
    own.
    """
    told = {rank: {c.at: c for c in known} for rank, known in checks.items()}
    told = {rank: known for rank, known in told.items() if any(at.boundary < before for at in known)}
    if len(told) < 2:
        return {}
    since = max(c.since for known in told.values() for c in known.values() if c.boundary < before)
    seen = {at for at in set.intersection(*map(set, told.values())) if at.boundary > since}
    common = sorted(at for at in seen if at.boundary < before)
    later = sorted(at for at in seen if at.boundary >= before)
    if not common:
        return {}
    newest = {rank: known[common[-1]] for rank, known in told.items()}
    digests = {rank: {b: _all(known[b]) for b in seen} for rank, known in told.items()}
    of_wrappers = {path for check in newest.values() for path in check.ddp_paths}
    derived = _derived(c for known in told.values() for c in known.values())
    decisive = of_wrappers or {path for check in newest.values() for path in check.digests} - derived
    numbers: dict[tuple[str | None, ...], int] = {}
    trained = {
        rank: numbers.setdefault(tuple(held[b].get(p) for p in decisive for b in seen), len(numbers))
        for rank, held in digests.items()
    }
    """The number of the set of ranks that each rank trains with.

    It is the same for ranks that hold the same of what wrappers keep, or, where no wrapper keeps anything, the same of all but
    small buffers.
    """
    modules: dict[str, list[str]] = {}
    for path in sorted({p for check in newest.values() for p in check.small} - of_wrappers):
        modules.setdefault(_module_of(path), []).append(path)
    found: dict[str, list[frozenset[int]]] = {}
    for path in {p for check in newest.values() for p in _all(check)} - derived:
        groups: dict[tuple[int | str, ...], set[int]] = {}
        for rank, known in told.items():
            held = [digests[rank][b].get(path, "") for b in common]
            kept = path in known[common[-1]].ddp_paths
            seen_equal = len(common) >= SEEN_EQUAL and (unwritten or len(set(held)) > 1)
            if all(held) and (kept or seen_equal):
                gone = [digests[rank][b].get(path, "") for b in later]
                beside = [] if kept else modules.get(_module_of(path), [])
                held += [digests[rank][b].get(other, "") for b in common for other in beside]
                groups.setdefault((trained[rank], *held, *gone), set()).add(rank)
        found[path] = [frozenset(group) for group in groups.values() if len(group) > 1]
    return {path: groups for path, groups in found.items() if groups}


def _module_of(path: str) -> str:
    return path.rpartition(".")[0]


def apart(known: Alike, now: Mapping[int, ReplicaCheck]) -> Apart | None:
    """Return which ranks hold the same no more; None as long as all is well.

    `now`: what ranks hold at one boundary, as far as they have told.
    """
    differing: dict[str, frozenset[int]] = {}
    derived = _derived(now.values())
    for path, groups in known.items():
        if path in derived:
            continue
        for group in groups:
            held = {digest for rank in group if rank in now and (digest := _all(now[rank]).get(path))}
            if len(held) > 1:
                differing.setdefault(path, group)
    if not differing:
        return None
    path = min(differing, key=lambda p: (not any(p in check.digests for check in now.values()), p))
    boundary = next(iter(now.values())).boundary
    return Apart(tuple(sorted(differing[path])), path, len(differing), boundary)


def _derived(checks: Iterable[ReplicaCheck]) -> set[str]:
    return {path for check in checks for path in check.derived}


def _all(check: ReplicaCheck) -> dict[str, str]:
    return {**check.digests, **check.small}
