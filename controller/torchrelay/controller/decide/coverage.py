"""What of this job is protected against what, by which mechanism? From the reports of all ranks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from torchrelay.controller.decide.donors import is_replica
from torchrelay.protocol.messages import Against, Coverage, Gap, RankGap, Rehearsed, ReplicaCheck, Report
from torchrelay.protocol.names import (
    ALONE,
    BARS,
    BARS_LATER,
    GOES_BACK,
    NO_JOINER,
    PART_OF_STEP,
    PARTLY,
    PENDING,
    PROTECTED,
    UNPROTECTED,
)
from torchrelay.protocol.rehearsal_words import sentence

YES, SOME, NO = "yes", "partly", "no"


@dataclass(frozen=True)
class Known:
    """What the controller knows. `protection`: pending, on or off, with its reason. `hang_s`: after how long a hang is noticed."""

    world_size: int
    protection: str
    protection_reason: str
    reports: Mapping[int, Report]
    checks: Mapping[int, Sequence[ReplicaCheck]]
    step_s: float
    hang_s: float
    nodes: int = 1
    copied: frozenset[int] = frozenset()
    """Ranks whose journals another node has whole copies of."""
    copy_every: int = 0
    """Steps between two copies of each rank's state in host memory; 0: there are none."""
    kept_elsewhere: frozenset[int] = frozenset()
    """Ranks of whose state another node has a whole copy."""
    copy_sync: bool = False
    """No step begins before the copies at its head are whole."""
    rehearsed: Mapping[int, Rehearsed] = field(default_factory=dict)
    """By rank: the latest rehearsal that told anything."""
    rehearsal_open: str = ""
    """Why the latest one did not come to an end."""


def coverage(k: Known) -> Coverage:
    """The protection report of the job."""
    reports = [k.reports[rank] for rank in sorted(k.reports)]
    gaps = _merged(k)
    level, reason = _level(k, gaps)
    shown = next((r for r in reports if r.settled), reports[0] if reports else None)
    return Coverage(
        level,
        reason,
        shown.file if shown else "",
        shown.line if shown else 0,
        _against(k, level, gaps),
        gaps,
        tuple(dict.fromkeys(note for r in reports for note in r.notes)),
        k.step_s,
        max((r.head_s for r in reports), default=0.0),
        max((r.gate_s for r in reports), default=0.0),
        max((r.barrier_s for r in reports), default=0.0),
        max((r.journal_bytes for r in reports), default=0),
        max((r.memory_bytes for r in reports), default=0),
        max((r.device_state_bytes for r in reports), default=0),
        max((r.tensors for r in reports), default=0),
        k.copy_every if _goes_back(k, gaps) else 0,
        max((r.copy_bytes for r in reports), default=0),
        max((r.copy_s for r in reports), default=0.0),
        k.copy_sync,
        _rehearsed(k),
    )


def _rehearsed(k: Known) -> tuple[str, ...]:
    told = [sentence(r.outcome, r.rank, k.world_size, r.boundary, r.reason) for _, r in sorted(k.rehearsed.items())]
    return (*told, *([f"not rehearsed: {k.rehearsal_open}"] if k.rehearsal_open else []))


def without_replica(rank: int, k: Known) -> str:
    """Why nobody holds the same tensors as `rank`; empty if somebody does, or as long as it is not known."""
    compared = _compared(k)
    if not compared:
        return ""
    until = max(compared)
    told = {r: [c for c in k.checks[r] if c.boundary <= until] for r in range(k.world_size)}
    peers = [r for r in range(k.world_size) if r != rank]
    if not peers:
        newest = next(c for c in told[rank] if c.boundary == until)
        return "there is no other rank" if newest.digests else ""
    why = ""
    for peer in peers:
        holds, why = is_replica(told[rank], told[peer], until, (rank, peer))
        if holds:
            return ""
    return why


def is_compared(k: Known) -> bool:
    """Whether it is known of every rank if another one holds the same."""
    return bool(_compared(k))


def _compared(k: Known) -> set[int]:
    """Boundaries after the first step of which all ranks have said what they hold."""
    said = [{c.boundary for c in k.checks.get(rank, ()) if c.boundary >= 1} for rank in range(k.world_size)]
    return set.intersection(*said) if said else set()


def _merged(k: Known) -> tuple[RankGap, ...]:
    """Each gap once, with its ranks, worst ones first."""
    ranks: dict[Gap, list[int]] = {}
    for rank in sorted(k.reports):
        for gap in k.reports[rank].gaps:
            ranks.setdefault(gap, []).append(rank)
    for rank in range(k.world_size):
        if why := without_replica(rank, k):
            text = f"no other rank holds the tensors of rank {rank}: {why}"
            ranks[Gap("no-replica", GOES_BACK if k.copy_every else ALONE, text)] = [rank]
        report = k.reports.get(rank)
        if report is not None and report.copy_failed:
            ranks.setdefault(Gap("copy", ALONE, report.copy_failed), []).append(rank)
    for rank, result in sorted(k.rehearsed.items()):
        for gap in result.gaps:
            ranks.setdefault(gap, []).append(rank)
    order = (BARS, BARS_LATER, NO_JOINER, ALONE, PART_OF_STEP, GOES_BACK)
    found = [RankGap(tuple(r), g.kind, g.effect, g.text, g.file, g.line) for g, r in ranks.items()]
    return tuple(sorted(found, key=lambda g: order.index(g.effect) if g.effect in order else len(order)))


def _level(k: Known, gaps: Sequence[RankGap]) -> tuple[str, str]:
    if k.protection == "off":
        return UNPROTECTED, k.protection_reason
    barred = [g for g in gaps if g.effect == BARS]
    if barred:
        return UNPROTECTED, barred[0].text
    if k.protection == "pending":
        return PENDING, k.protection_reason
    unknown = [rank for rank in range(k.world_size) if rank not in k.reports or not k.reports[rank].settled]
    if unknown:
        listed = ", ".join(map(str, unknown))
        return PENDING, f"the training loop of rank {listed} has not come round yet"
    alone = [g for g in gaps if g.effect == ALONE]
    if len({rank for g in alone for rank in g.ranks}) == k.world_size:
        held = all(g.kind == "no-replica" for g in alone)
        why = "no rank's tensors are held by another one as well" if held else alone[0].text
        return PARTLY, f"only planned moves: {why}"
    refuted = sorted({rank for g in gaps if g.effect == NO_JOINER for rank in g.ranks})
    if refuted:
        listed, plural = ", ".join(map(str, refuted)), "s" * (len(refuted) > 1)
        instead = "a just-in-time checkpoint, to go on from by hand, is what is left if one is lost"
        return PARTLY, f"rank{plural} {listed} could not be replaced, as a rehearsal has shown; {instead}"
    if gaps and all(g.effect == GOES_BACK for g in gaps):
        return PARTLY, f"any rank can be replaced; without warning all go back to copies, {_up_to(k)}"
    if gaps:
        return PARTLY, f"any rank can be replaced, with {len(gaps)} exception{'s' if len(gaps) > 1 else ''}"
    return PROTECTED, "any rank can be replaced, at any moment of a step"


def _against(k: Known, level: str, gaps: Sequence[RankGap]) -> tuple[Against, ...]:
    if level == PENDING:
        return ()
    if level == UNPROTECTED:
        return (
            Against("a process that dies", NO, "ends the job, as with torchrun"),
            Against(
                "a rank that hangs",
                NO,
                "the others wait for it, as with torchrun, until the script's own limits end them",
            ),
            Against("a planned move", NO, "is refused"),
        )
    effects = {g.effect for g in gaps}
    alone = {rank for g in gaps if g.effect == ALONE for rank in g.ranks}
    how = "a spare takes over; tensors come from a rank that holds the same, the rest from the journal; the step is done again"
    back = {rank for g in gaps if g.effect == GOES_BACK for rank in g.ranks}
    answer = SOME if effects - {ALONE, GOES_BACK} else YES
    if len(alone) == k.world_size:
        answer, how = NO, "no other rank holds the same tensors"
    elif back:
        who = "any rank" if len(back) == k.world_size else f"rank {', '.join(map(str, sorted(back)))}"
        answer, how = SOME, f"of {who}: all go back to their copies in host memory, {_up_to(k)}"
    elif alone:
        answer, how = SOME, f"{how}. Not rank {', '.join(map(str, sorted(alone)))}, whose tensors nobody else has"
    moved = SOME if effects & {BARS_LATER} or any(g.effect not in (ALONE, PART_OF_STEP) for g in gaps) else YES
    return (
        Against("a process that dies", answer, how),
        Against(
            "a rank that hangs",
            answer,
            f"noticed after {k.hang_s:.1f} s, 1 s if it is stopped; ended and replaced in the same way",
        ),
        Against("a planned move", moved, "between two steps; the process that leaves hands everything over"),
        *((_of_a_machine(k, answer),) if k.nodes > 1 else ()),
        Against("all ranks at once", NO, "restart from the last checkpoint of the script"),
    )


def _goes_back(k: Known, gaps: Sequence[RankGap]) -> bool:
    return k.copy_every > 0 and (not is_compared(k) or any(g.effect == GOES_BACK for g in gaps))


def _up_to(k: Known) -> str:
    every = k.copy_every
    if k.copy_sync:
        often = "before each step" if every == 1 else f"every {every} steps, before the next one begins"
        return f"which are made {often}: at most {every} step{'s are' if every > 1 else ' is'} done again"
    return f"which are made every {every} steps: up to {2 * every} steps are done again"


def _of_a_machine(k: Known, process: str) -> Against:
    """`process`: what is true of a process that dies, which is the most that can be true of all of a machine's."""
    what = "a machine that is lost"
    missing = sorted(set(range(k.world_size)) - k.copied)
    if missing or process == NO:
        listed = ", ".join(map(str, missing))
        return Against(
            what, NO, f"no other machine has the journals of rank {listed} yet" if missing else "as for a process"
        )
    alone = [rank for rank in range(k.world_size) if without_replica(rank, k) and rank not in k.kept_elsewhere]
    if alone:
        return Against(what, NO, f"no other machine has a copy of the state of rank {', '.join(map(str, alone))}")
    how = "spares on the others take over, from copies of the journals; not where the controller runs, nor from two at once"
    return Against(what, SOME, how)
