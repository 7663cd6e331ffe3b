"""Tells which survivor holds bitwise copies of a lost rank's tensors: by content, not by a framework's name."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

from torchrelay.controller.decide.migration.stand import Cannot
from torchrelay.protocol.messages import Head, ReplicaCheck, Standing
from torchrelay.protocol.words.positions import StandingPosition
from torchrelay.protocol.words.tensor_paths import OPTIMIZER

_AMONG = re.compile(r"(.*)@(=?)([\d,]+)")
"""See messages.ReplicaCheck.ddp_paths."""

MAX_HELPERS = 3
"""A joiner has four connections: with more donors than that each would give less than one connection's worth."""


@dataclass(frozen=True)
class ChosenDonor:
    """The chosen donor.

    `helpers`: ranks that hold the same and stand at the same place, so that they can send tensors at the same time.
    `carried`: tensors that the donor need not hold, since the lost rank has copied them in its step.
    `compared`: the newest boundary at which contents of both were compared.
    `lacking`: paths of optimizer state that the donor had there, and the lost rank had not.
    """

    rank: int
    reason: str
    helpers: tuple[int, ...] = ()
    carried: tuple[str, ...] = ()
    compared: int = 0
    lacking: tuple[str, ...] = ()


def choose_donor(
    lost: int,
    target: int,
    standings: Mapping[int, Standing],
    checks: Mapping[int, Sequence[ReplicaCheck]],
    busy: Collection[int] = (),
    nodes: Mapping[int, str] = MappingProxyType({}),
    *,
    with_carried: bool = True,
) -> ChosenDonor | Cannot:
    """Choose the survivor that gives a lost rank's tensors.

    `checks`: the latest ones of each rank, lost ones too; `busy`: donors that serve another rank already.
    `nodes`: the nodes of survivors. Help comes from other nodes first, whose links are not in use.
    `with_carried`: whether the new process can take what the lost rank has copied. It does where nobody holds all that it had.
    """
    copied = carried_by(checks.get(lost, ()), target) if with_carried else frozenset()
    chosen = _choose(lost, target, standings, checks, busy, nodes, frozenset())
    if isinstance(chosen, Cannot) and copied:
        return _choose(lost, target, standings, checks, busy, nodes, copied)
    return chosen


def _choose(
    lost: int,
    target: int,
    standings: Mapping[int, Standing],
    checks: Mapping[int, Sequence[ReplicaCheck]],
    busy: Collection[int],
    nodes: Mapping[int, str],
    carried: frozenset[str],
) -> ChosenDonor | Cannot:
    """`carried`: paths that the donor need not hold."""
    can_serve = [r for r, s in sorted(standings.items()) if target in (s.boundary, s.gates_passed)]
    why_not: dict[int, str] = {}
    found: list[tuple[tuple[bool, bool, bool, int], str]] = []
    for rank in can_serve:
        s = standings[rank]
        late = s.late.keys() - carried
        if s.position == StandingPosition.FINISHED and late:
            why_not[rank] = f"it has written to {min(late)} since its last optimizer step"
            continue
        apart = s.not_averaged if s.gates_passed == target else ()
        holds, why = is_replica(
            checks.get(lost, ()), checks.get(rank, ()), target, (lost, rank), apart, carried, has_before=s.has_before
        )
        if holds:
            # A rank past the gate has the tensors only once its update is through; it is asked last.
            found.append(((rank in busy, s.boundary != target, s.position == StandingPosition.GATE, rank), why))
        else:
            why_not[rank] = why
    if found:
        (*_, rank), why = min(found)
        others = [other for (*_, other), _ in found if other != rank]
        if carried:  # what each of them has in its place is its own
            others = [o for o in others if is_replica(checks[rank], checks[o], target, (rank, o))[0]]
        helpers = choose_helpers(rank, others, standings, busy, nodes)
        reason = f"{_who(rank, helpers)} to rank {lost}: {why}"
        compared, lacking = _compared_at(checks.get(lost, ()), checks.get(rank, ()), target)
        return ChosenDonor(rank, reason, helpers, tuple(carried), compared, lacking)
    if not can_serve:
        return Cannot(f"no rank that is left holds the tensors as they were after step {target}")
    listed = "; ".join(f"rank {r}: {why}" for r, why in why_not.items())
    return Cannot(f"no rank that is left holds the same tensors as rank {lost} ({listed})")


def choose_helpers(
    donor: int,
    replicas: Collection[int],
    standings: Mapping[int, Standing],
    busy: Collection[int] = (),
    nodes: Mapping[int, str] = MappingProxyType({}),
) -> tuple[int, ...]:
    """Return other replicas that stand exactly where the donor does. Elsewhere a step may have written to tensors since."""
    place = _place(standings[donor])
    alike = sorted(r for r in replicas if _place(standings[r]) == place and r not in busy)
    chosen: list[int] = []
    while alike and len(chosen) < MAX_HELPERS:
        used = [nodes.get(r, "") for r in (donor, *chosen)]
        chosen.append(min(alike, key=lambda r: (used.count(nodes.get(r, "")), r)))
        alike.remove(chosen[-1])
    return tuple(chosen)


def _place(s: Standing) -> tuple[object, ...]:
    return s.boundary, s.gates_passed, s.position, s.log_length, dict(s.late)


def _who(donor: int, helpers: Sequence[int]) -> str:
    if not helpers:
        return f"rank {donor} gives its tensors"
    named = ", ".join(map(str, (donor, *helpers[:-1])))
    return f"ranks {named} and {helpers[-1]}, which hold the same, give their tensors"


def is_replica(
    lost: Sequence[ReplicaCheck],
    donor: Sequence[ReplicaCheck],
    target: int,
    ranks: tuple[int, int],
    not_averaged: Sequence[str] = (),
    carried: Collection[str] = (),
    *,
    has_before: bool = False,
) -> tuple[bool, str]:
    """Return whether the donor has an equal copy of each of the lost rank's tensors, and how that is known. `ranks`: of both.

    `not_averaged`: as in the donor's Standing; counts where only a wrapper speaks for equality.
    `has_before`: as in the donor's Standing.
    `carried`: paths that need not be equal. Only contents that were compared can tell that all others are.
    Checks from before the training loop that the donor is in tell nothing: each loop can have tensors of its own.
    """
    since = max((c.since for c in donor), default=0)
    if since == target and lost and all(c.boundary < since for c in lost):
        # The donor is in the next loop already. It gives what it had in the one before, if by the names that it had there.
        before = [c for c in donor if c.since < since]
        if (
            before
            and (has_before or _are_called_as_before(before, donor, since))
            and (found := is_replica(lost, before, target, ranks, not_averaged, carried))[0]
        ):
            return found
    newest_own = _newest(lost, target)
    if (
        carried
        and newest_own is not None
        and newest_own.boundary >= since
        and newest_own.digests.keys() <= set(carried)
    ):
        return True, f"rank {ranks[0]} has copied all {len(newest_own.digests)} of its tensors in each step"
    ours = {c.at: c for c in lost if c.boundary >= since}
    theirs = {c.at: c for c in donor if c.boundary >= since}
    common = [at for at in ours if at in theirs and at.boundary <= target]
    trained = [at for at in common if at.boundary > since or at.boundary == target]
    if trained:
        latest = max(trained)
        holds, why = _equal_digests(ours[latest], theirs[latest], carried)
        return (holds, why) if not holds else _always_equal(ours, theirs, trained, ranks, why, carried)
    if not_averaged:
        return False, (
            f"the latest update of {min(not_averaged)} went past the data parallel wrapper around it, "
            "and contents have not been compared since"
        )
    if bypassed := _differed_though_kept(lost, donor, target, ranks):
        return False, bypassed
    if common:
        # Before the first update ranks can be equal by initialisation alone: that holds for no later boundary.
        newest_head = max(common)
        return _kept_equal(ours[newest_head], theirs[newest_head], ranks)
    if theirs:
        newest = theirs[max(theirs)]
        return _kept_equal(newest, newest, ranks)
    return False, "its tensors have not been looked at yet"


def _are_called_as_before(before: Sequence[ReplicaCheck], donor: Sequence[ReplicaCheck], since: int) -> bool:
    """Return whether the names that the donor had before `since` mean the same tensors since then."""
    names = max(before, key=lambda c: c.boundary).digests.keys()
    return all(not c.renamed and names.isdisjoint(c.fresh) for c in donor if c.boundary == since == c.since)


def carried_by(checks: Sequence[ReplicaCheck], target: int) -> frozenset[str]:
    """Return what a rank has copied in each step since the newest of its `checks` up to `target`."""
    newest = _newest(checks, target)
    return frozenset(newest.carried) if newest is not None else frozenset()


def _compared_at(
    lost: Sequence[ReplicaCheck], donor: Sequence[ReplicaCheck], target: int
) -> tuple[int, tuple[str, ...]]:
    """Return the newest boundary at which contents of both were compared, and what optimizers kept there on the donor alone."""
    ours = {c.at: c for c in lost if c.boundary <= target}
    theirs = {c.at: c for c in donor if c.at in ours}
    if not theirs:
        return 0, ()
    newest = max(theirs)
    alone = theirs[newest].digests.keys() - ours[newest].digests.keys()
    return newest.boundary, tuple(sorted(path for path in alone if path.startswith(OPTIMIZER)))


def _newest(checks: Sequence[ReplicaCheck], target: int) -> ReplicaCheck | None:
    return max((c for c in checks if c.boundary <= target), key=lambda c: c.boundary, default=None)


def differing_paths(ours: Sequence[ReplicaCheck], theirs: Sequence[ReplicaCheck], ranks: tuple[int, int]) -> set[str]:
    """Return the tensors of the first rank that the second one did not hold at some boundary at which contents were compared.

    Tensors that a wrapper keeps equal count at the newest boundary alone, as for `is_replica`. Empty where nothing was compared.
    """
    since = max((c.since for c in theirs), default=0)
    ours_at = {c.at: c for c in ours if c.boundary >= since}
    theirs_at = {c.at: c for c in theirs if c.boundary > since}
    trained = ours_at.keys() & theirs_at.keys()
    if not trained:
        return set()
    newest = max(trained)
    kept = _kept(ours_at[newest], theirs_at[newest], ranks)
    return {
        path
        for at in trained
        for path in ours_at[newest].digests
        if (at == newest or path not in kept) and ours_at[at].digests.get(path) != theirs_at[at].digests.get(path)
    }


def _equal_digests(ours: ReplicaCheck, theirs: ReplicaCheck, carried: Collection[str]) -> tuple[bool, str]:
    apart = [path for path, digest in ours.digests.items() if theirs.digests.get(path) != digest]
    differing = [path for path in apart if path not in carried]
    if differing:
        return False, f"{len(differing)} tensors differed after step {ours.boundary}, such as {min(differing)}"
    if apart:
        own = f"all but {len(apart)}, which are copied in each step,"
        return True, f"of {len(ours.digests)} tensors {own} were bitwise equal after step {ours.boundary}"
    return True, f"all {len(ours.digests)} tensors were bitwise equal after step {ours.boundary}"


def _always_equal(
    ours: Mapping[Head, ReplicaCheck],
    theirs: Mapping[Head, ReplicaCheck],
    trained: Sequence[Head],
    ranks: tuple[int, int],
    why: str,
    carried: Collection[str],
) -> tuple[bool, str]:
    """Return whether the ranks were equal at all boundaries, but for tensors that a wrapper keeps equal.

    Ranks that average now and then are equal at some boundaries, and apart in between.
    """
    newest = max(trained)
    kept = _kept(ours[newest], theirs[newest], ranks).union(carried)
    for at in trained:
        a = ours[at].digests
        b = theirs[at].digests
        differed = [path for path in ours[newest].digests if path not in kept and a.get(path) != b.get(path)]
        if differed:
            return False, (
                f"{min(differed)} was equal after step {newest.boundary} and not after step {at.boundary}: nothing keeps it equal"
            )
    return True, why


def _kept(ours: ReplicaCheck, theirs: ReplicaCheck, ranks: tuple[int, int]) -> set[str]:
    """Return the tensors that a wrapper keeps equal on both ranks."""
    kept = set()
    for entry in set(ours.ddp_paths) & set(theirs.ddp_paths):
        found = _AMONG.fullmatch(entry)
        if found is None:
            kept.add(entry)
            continue
        path, must_have_been, among = found.groups()
        was = ours is not theirs and ours.digests.get(path) == theirs.digests.get(path)
        if set(ranks) <= set(map(int, among.split(","))) and (was or not must_have_been):
            kept.add(path)
    return kept


def _differed_though_kept(
    lost: Sequence[ReplicaCheck], donor: Sequence[ReplicaCheck], target: int, ranks: tuple[int, int]
) -> str:
    """Return why a wrapper has not kept its tensors equal, at the newest boundary that both ranks have looked at; empty if it has.

    A script may call the module inside of it. That boundary may be one before the training loop that runs now.
    """
    ours, theirs = ({c.at: c for c in checks if c.boundary <= target} for checks in (lost, donor))
    newest = max(ours.keys() & theirs.keys(), default=None)
    if newest is None:
        return ""
    a = ours[newest]
    b = theirs[newest]
    differed = sorted(p for p in _kept(a, b, ranks) if p in a.digests and a.digests[p] != b.digests.get(p))
    if not differed:
        return ""
    return f"{differed[0]} differed after step {newest.boundary}: the data parallel wrapper around it does not keep it equal"


def _kept_equal(ours: ReplicaCheck, theirs: ReplicaCheck, ranks: tuple[int, int]) -> tuple[bool, str]:
    kept = _kept(ours, theirs, ranks)
    others = sorted(set(ours.digests) - kept)
    if others:
        return (
            False,
            f"nothing keeps {others[0]} equal on both ranks, and contents have not been compared since step 1",
        )
    return True, "a data parallel wrapper keeps all its tensors equal (contents have not been compared since step 1)"
