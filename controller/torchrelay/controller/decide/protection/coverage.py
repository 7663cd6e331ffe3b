"""Tells what of this job is protected against what, by which mechanism, from the reports of all ranks."""

from __future__ import annotations

from collections.abc import Sequence

from torchrelay.controller.decide.listed import listed
from torchrelay.controller.decide.protection.known import Known, gaps_of, is_compared, machine_uncovered, steps_back
from torchrelay.controller.decide.protection.level import JIT_CHECKPOINT, LED, NO_SPARE, LevelDecision, protection
from torchrelay.protocol.messages import Against, Coverage, RankGap
from torchrelay.protocol.names import ALONE, BARS_LATER, BEHIND_UPDATE, GOES_BACK, PART_OF_STEP
from torchrelay.protocol.words.level import Level
from torchrelay.protocol.words.rehearsal_words import sentence

YES = "yes"
SOME = "partly"
NO = "no"


def coverage(k: Known) -> Coverage:
    """Return the protection report of the job."""
    reports = [k.reports[rank] for rank in sorted(k.reports)]
    gaps = gaps_of(k)
    found = protection(k, gaps)
    shown = next((r for r in reports if r.settled), reports[0] if reports else None)
    return Coverage(
        found.level.value,
        found.reason,
        shown.file if shown else "",
        shown.line if shown else 0,
        _against(k, found, gaps),
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
        max((r.share for r in reports), default=0.0),
        max((r.share_p95 for r in reports), default=0.0),
        ",".join(sorted({r.transfer_encryption for r in reports} - {""})) if k.nodes > 1 else "",
        found.cause.value,
    )


def _rehearsed(k: Known) -> tuple[str, ...]:
    told = [sentence(r.outcome, r.rank, k.world_size, r.boundary, r.reason) for _, r in sorted(k.rehearsed.items())]
    return (*told, *([f"not rehearsed: {k.rehearsal_open}"] if k.rehearsal_open else []))


def _against(k: Known, found: LevelDecision, gaps: Sequence[RankGap]) -> tuple[Against, ...]:
    if not found.level.is_known:
        return ()
    if found.for_want_of_a_spare:
        return _without_a_spare(k, found)
    if found.level == Level.UNPROTECTED:
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
    who_takes_over = "a new process is started in its place, and takes over" if found.in_place else "a spare takes over"
    how = f"{who_takes_over}; tensors come from a rank that holds the same, the rest from the journal; the step is done again"
    back = {rank for g in gaps if g.effect == GOES_BACK for rank in g.ranks}
    answer = SOME if effects - {ALONE, GOES_BACK} else YES
    if k.losses_barred:
        answer = NO
        how = k.losses_barred
    elif len(alone) == k.world_size:
        answer = NO
        how = "no other rank holds the same tensors"
    elif back:
        who = "any rank" if len(back) == k.world_size else f"rank {listed(sorted(back))}"
        answer = SOME
        how = f"of {who}: all go back to their copies in host memory, {steps_back(k)}"
    elif alone:
        answer = SOME
        how = f"{how}. Not rank {listed(sorted(alone))}, whose tensors nobody else has"
    moved = (
        SOME
        if effects & {BARS_LATER} or any(g.effect not in (ALONE, PART_OF_STEP, BEHIND_UPDATE) for g in gaps)
        else YES
    )
    return (
        Against("a process that dies", answer, how),
        Against(
            "a rank that hangs",
            answer,
            f"noticed after {k.hang_s:.1f} s, 1 s if it is stopped; ended and replaced in the same way",
        ),
        Against("a planned move", NO, NO_SPARE)
        if found.in_place
        else Against("a planned move", moved, "between two steps; the process that leaves hands everything over"),
        *((_of_a_machine(k, answer),) if k.nodes > 1 else ()),
        Against("all ranks at once", NO, "restart from the last checkpoint of the script"),
    )


def _without_a_spare(k: Known, found: LevelDecision) -> tuple[Against, ...]:
    answer = NO
    how = f"{NO_SPARE}: it ends the job in {JIT_CHECKPOINT}"
    if found.level == Level.PARTLY:
        answer = SOME
        how = f"{NO_SPARE}: it begins anew in its place, and all go back to copies, {steps_back(k)}"
    return (
        Against("a process that dies", answer, how),
        Against(
            "a rank that hangs", answer, "ended after the same time as with a spare; then as for a process that dies"
        ),
        Against("a planned move", NO, NO_SPARE),
    )


def _goes_back(k: Known, gaps: Sequence[RankGap]) -> bool:
    return k.copy_every > 0 and (not is_compared(k) or any(g.effect == GOES_BACK for g in gaps))


def _of_a_machine(k: Known, process: str) -> Against:
    """Return the protection against the loss of a machine.

    `process`: the answer for a process that dies. No better answer can be true of all processes of a machine.
    """
    what = f"a {k.place} that is lost"
    if process == NO:
        return Against(what, NO, "as for a process")
    if lacks := machine_uncovered(k):
        return Against(what, NO, lacks)
    who = "spares on the others take over, or processes that are started there"
    led = f" ({LED})" if k.leads_itself else ""
    how = f"{who}, from copies of the journals{led}; not from two at once"
    return Against(what, SOME, how)
