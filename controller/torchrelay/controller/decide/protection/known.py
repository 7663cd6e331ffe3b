"""What the controller knows of a job's protection, and what follows of its gaps. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from torchrelay.controller.decide.listed import listed
from torchrelay.controller.decide.migration.donors import carried_by, is_replica
from torchrelay.controller.decide.protection.lost_together import MACHINE
from torchrelay.protocol.messages import Gap, Head, RankGap, Rehearsed, ReplicaCheck, Report
from torchrelay.protocol.names import ALONE, BARS, BARS_LATER, BEHIND_UPDATE, GOES_BACK, NO_JOINER, PART_OF_STEP

SMALL_JOB = 64
"""Ranks: up to so many each one is compared with each other one."""
PEERS = 4


@dataclass(frozen=True)
class Known:
    """`protection`: pending, on or off (whether ranks are armed), with its reason. `hang_s`: after how long a hang is noticed.

    `spares_ready`: that could take over any rank; `spares_coming`: that start, or are being made.
    """

    world_size: int
    protection: str
    protection_reason: str
    reports: Mapping[int, Report]
    checks: Mapping[int, Sequence[ReplicaCheck]]
    step_s: float
    hang_s: float
    nodes: int = 1
    place: str = MACHINE
    """What can be lost with all that is on it: a machine, or a pod where all pods of the job share one machine."""
    machine_of: Mapping[int, str] = field(default_factory=dict)
    """By rank, where there are two such places or more."""
    leads_itself: bool = True
    """The controller is on one of the machines."""
    copied: frozenset[int] = frozenset()
    """Ranks whose journals another place has whole copies of."""
    copy_every: int = 0
    """Steps between two copies of each rank's state in host memory; 0: there are none, or that is not chosen yet."""
    lost: frozenset[int] = frozenset()
    """Ranks that nobody has now, as long as they are being replaced: they hold nothing for others."""
    kept_elsewhere: frozenset[int] = frozenset()
    """Ranks of whose state another place has a whole copy."""
    copy_sync: bool = False
    """No step begins before the copies at its head are whole."""
    rehearsed: Mapping[int, Rehearsed] = field(default_factory=dict)
    """By rank: the latest rehearsal that told anything."""
    rehearsal_open: str = ""
    """Why the latest one did not come to an end."""
    spares_ready: int = 1
    spares_coming: int = 0
    losses_barred: str = ""
    """Why lost ranks are not replaced, by somebody's choice."""
    short_of_spares: str = ""
    """Which place has more ranks than there are spares on others; empty if none has."""
    respawns: bool = False
    """A process is started in the place of a lost one's, where there is no spare."""
    respawns_spent: str = ""
    """Why that is not done again for now."""
    refilling: bool = False
    """The spares that are coming are made in the place of others."""
    as_needed: bool = False
    """Copies are made where somebody needs them: the first one at once, the others every `copy_every` steps."""

    joiner_lacks: str = ""
    """What a process that takes over a rank lacks on every machine; `checkpoint_lacks`: what a just-in-time checkpoint lacks."""
    checkpoint_lacks: str = ""

    @property
    def has_copies(self) -> bool:
        """Whether each rank has a copy of its state to go back to."""
        made = [self.reports[rank].copy_bytes for rank in range(self.world_size) if rank in self.reports]
        return len(made) == self.world_size and all(made)


def without_replica(k: Known) -> dict[int, str]:
    """Ranks whose tensors nobody else holds, with why; none as long as that is not known.

    In a large job only ranks that have said the same at all boundaries are compared, which takes time in proportion to its size.
    """
    return _without(k, {})


def without_way_in(k: Known) -> dict[int, str]:
    """As `without_replica`, less ranks that copy at each head what they alone hold, where a new process can take it from."""
    return _without(k, {}, may_carry=k.nodes == 1)


def needs_copies(k: Known) -> dict[int, str]:
    """Ranks for whose loss copies of all ranks are what is left, with why: nobody else has what they hold, or what a part of
    their step does cannot be done again."""
    found = {}
    for rank, report in k.reports.items():
        if gap := next((g for g in report.gaps if g.effect in (PART_OF_STEP, BEHIND_UPDATE)), None):
            found[rank] = gap.text
    return dict(sorted({**found, **without_replica(k)}.items()))


def without_replica_elsewhere(k: Known) -> dict[int, str]:
    """Ranks whose tensors no rank of another place holds, with why."""
    return _without(k, k.machine_of)


def _without(k: Known, machine_of: Mapping[int, str], *, may_carry: bool = False) -> dict[int, str]:
    """`machine_of`: where only ranks on other machines count; empty: all do."""
    compared = _compared(k)
    if not compared:
        return {}
    until = max(compared).boundary
    told = {r: [c for c in k.checks[r] if c.boundary <= until] for r in range(k.world_size)}
    begins = any(c.boundary == until == c.since for checks in told.values() for c in checks)
    # What ranks hold alike where a loop begins, they need not hold alike behind its first update.
    target = until + begins
    alike: dict[tuple[int, ...], list[int]] = {}
    for rank, checks in told.items():
        alike.setdefault(tuple(c.mark for c in checks), []).append(rank)
    found = {}
    for same in alike.values():
        spread = list({machine_of.get(r): r for r in reversed(same)}.values())[-PEERS - 1 :] if machine_of else []
        for place, rank in enumerate(same):
            peers = spread if machine_of else [*same[place + 1 : place + 1 + PEERS], *same[: min(place, PEERS)]]
            if k.world_size <= SMALL_JOB:
                peers = [*peers, *(r for r in range(k.world_size) if r != rank and r not in peers)]
            if machine_of:
                peers = [r for r in peers if machine_of.get(r) != machine_of.get(rank)]
            living = [r for r in peers if r not in k.lost]
            if why := _alone(rank, living, told, until, target, may_carry=may_carry):
                gone = [r for r in peers if r in k.lost]
                found[rank] = f"rank {listed(gone)} is being replaced" if gone and not living else why
    return dict(sorted(found.items()))


def _alone(
    rank: int,
    peers: Sequence[int],
    told: Mapping[int, Sequence[ReplicaCheck]],
    until: int,
    target: int,
    *,
    may_carry: bool,
) -> str:
    if len(told) == 1:
        newest = next(c for c in told[rank] if c.boundary == until)
        return "there is no other rank" if newest.digests else ""
    why = f"no other rank held the same after step {until}"
    carried = carried_by(told[rank], until) if may_carry else ()
    for peer in peers:
        holds, why = is_replica(told[rank], told[peer], target, (rank, peer), carried=carried)
        if holds:
            return ""
    return why


def is_compared(k: Known) -> bool:
    """Whether it is known of every rank if another one holds the same."""
    return bool(_compared(k))


def _compared(k: Known) -> set[Head]:
    """Heads after the first step of which all ranks have said what they hold."""
    said = [{c.at for c in k.checks.get(rank, ()) if c.boundary >= 1} for rank in range(k.world_size)]
    return set.intersection(*said) if said else set()


def gaps_of(k: Known) -> tuple[RankGap, ...]:
    """Each gap once, with its ranks, worst ones first."""
    ranks: dict[Gap, list[int]] = {}
    for rank in sorted(k.reports):
        for gap in k.reports[rank].gaps:
            ranks.setdefault(gap, []).append(rank)
    alone = without_way_in(k)
    for rank in range(k.world_size):
        if why := alone.get(rank):
            text = f"no other rank holds the tensors of rank {rank}: {why}"
            if (k.copy_every or k.as_needed) and not k.has_copies:
                text += "; there are no whole copies to go back to yet"
            ranks[Gap("no-replica", GOES_BACK if k.has_copies else ALONE, text)] = [rank]
        report = k.reports.get(rank)
        if report is not None and report.copy_failed:
            ranks.setdefault(Gap("copy", ALONE, report.copy_failed), []).append(rank)
    for rank, result in sorted(k.rehearsed.items()):
        for gap in result.gaps:
            ranks.setdefault(gap, []).append(rank)
    order = (BARS, BARS_LATER, NO_JOINER, ALONE, PART_OF_STEP, BEHIND_UPDATE, GOES_BACK)
    found = [RankGap(tuple(r), g.kind, g.effect, g.text, g.file, g.line) for g, r in ranks.items()]
    return tuple(sorted(found, key=lambda g: order.index(g.effect) if g.effect in order else len(order)))


def goes_back(k: Known, gaps: Sequence[RankGap]) -> set[int]:
    """Ranks whose loss takes all back to their copies, which needs no spare: as long as anybody else holds what such a rank
    held, the job ends in a just-in-time checkpoint instead, from which nothing is done again."""
    return {rank for g in gaps if g.effect == GOES_BACK for rank in g.ranks}


def goes_back_without_a_process(k: Known, gaps: Sequence[RankGap]) -> set[int]:
    """Return as `goes_back`, with the ranks that only a new process could take over from what they have copied at their heads."""
    return goes_back(k, gaps).union(without_replica(k) if k.has_copies else ())


def on_one_machine(k: Known) -> str:
    """Return why the loss of one place leaves nobody, though there are others; empty if it does not."""
    machines = set(k.machine_of.values())
    return f"all ranks are on {min(machines)}, so no rank would be left" if len(machines) == 1 else ""


def machine_uncovered(k: Known) -> str:
    """Return why the loss of a place ends the job, though that of a process would not; empty if it does not."""
    if together := on_one_machine(k):
        return together
    missing = sorted(set(range(k.world_size)) - k.copied)
    if missing:
        return f"no other {k.place} has the journals of rank {listed(missing)} yet"
    alone = [rank for rank in without_replica_elsewhere(k) if rank not in k.kept_elsewhere]
    if alone:
        return f"no other {k.place} has a copy of the state of rank {listed(alone)}"
    return k.short_of_spares


def steps_back(k: Known) -> str:
    """How far ranks go back to their copies, in words."""
    every = k.copy_every
    if not every:
        return "of which there is one each so far: the steps since then are done again"
    if k.copy_sync:
        often = "before each step" if every == 1 else f"every {every} steps, before the next one begins"
        return f"which are made {often}: at most {every} step{'s are' if every > 1 else ' is'} done again"
    if k.as_needed:
        often = "every step" if every == 1 else f"every {every} steps"
        return f"which are made {often}, or once the one before is whole: about {2 * every} steps are done again"
    return f"which are made every {every} steps: up to {2 * every} steps are done again"
