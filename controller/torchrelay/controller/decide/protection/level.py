"""Decides how far this job is protected, in words that say what to do. No other place decides it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from torchrelay.controller.decide.listed import listed
from torchrelay.controller.decide.protection.known import (
    Known,
    goes_back,
    goes_back_without_a_process,
    machine_uncovered,
    on_one_machine,
    steps_back,
    without_replica,
)
from torchrelay.protocol.messages import RankGap
from torchrelay.protocol.names import ALONE, BARS, GOES_BACK, NO_JOINER
from torchrelay.protocol.words.causes import ProtectionCause as Cause
from torchrelay.protocol.words.level import Level

JIT_CHECKPOINT = "a just-in-time checkpoint"
NO_SPARE = "no spare is there"
LED = "that of the controller too, if more than half of the machines are left, or half that share --jit-dir"


@dataclass(frozen=True)
class LevelDecision:
    """The level. `for_want_of_a_spare`: with a spare the level would be higher.

    `in_place`: new processes start where the lost ones were. `cause`: what the level hangs on.
    """

    level: Level
    reason: str
    for_want_of_a_spare: bool = False
    in_place: bool = False
    cause: Cause = Cause.COVERED


def protection(k: Known, gaps: Sequence[RankGap]) -> LevelDecision:
    """Decide the level from what is known now. `gaps`: as `known.gaps_of` has them."""
    return _with_room(k, _with_all_the_room(k, gaps))


def _with_room(k: Known, found: LevelDecision) -> LevelDecision:
    """Lower the level where there is no room: what has no room now would fail when it is needed."""
    if found.level.promises and k.joiner_lacks:
        why = f"no process could take over a rank: there is no room for its journals: {k.joiner_lacks}"
        return LevelDecision(Level.UNPROTECTED, why, cause=Cause.NO_ROOM)
    if not k.checkpoint_lacks or not found.level.is_known:
        return found
    where = "in such a case" if found.for_want_of_a_spare else "where no rank can take over"
    reason = f"{found.reason}; but {where} nothing can be saved: {k.checkpoint_lacks}"
    level = Level.PARTLY if found.level.promises else found.level
    cause = Cause.NO_ROOM if found.cause is Cause.COVERED else found.cause
    return replace(found, level=level, reason=reason, cause=cause)


def _with_all_the_room(k: Known, gaps: Sequence[RankGap]) -> LevelDecision:
    if k.protection == "off":
        return LevelDecision(Level.UNPROTECTED, k.protection_reason, cause=Cause.OFF)
    barred = [g for g in gaps if g.effect == BARS]
    if barred:
        return LevelDecision(Level.UNPROTECTED, barred[0].text, cause=Cause.GAPS)
    if k.protection == "pending":
        return LevelDecision(Level.PENDING, k.protection_reason, cause=Cause.SET_UP)
    if any(rank not in k.reports or not k.reports[rank].settled for rank in range(k.world_size)):
        why = "all ranks are watched, and the training loop has not come round yet"
        return LevelDecision(Level.ARMED, why, cause=Cause.SET_UP)
    best = _with_a_spare(k, gaps)
    if k.spares_ready or not best.level.promises:
        return best
    if k.spares_coming and k.refilling and k.respawns:
        return replace(best, reason=f"{best.reason}; a rank that is lost now waits for the spare that is being made")
    if k.spares_coming:
        why = "no spare is ready yet: a rank that is lost waits for one that is on its way"
        return LevelDecision(Level.ARMED, why, cause=Cause.NO_SPARE)
    return _without_a_spare(k, gaps, best)


def _without_a_spare(k: Known, gaps: Sequence[RankGap], best: LevelDecision) -> LevelDecision:
    with_one = f"With one: {best.level.words}: {best.reason}"
    if k.losses_barred:
        why = f"{NO_SPARE}, so no rank can be moved. {with_one}"
        return LevelDecision(Level.UNPROTECTED, why, True, cause=Cause.NO_SPARE)
    alone = {rank for g in gaps if g.effect == ALONE for rank in g.ranks}
    if k.respawns and not k.respawns_spent and len(alone) < k.world_size:
        refuted = any(g.effect == NO_JOINER for g in gaps)
        how = "" if refuted else "a process that dies is started again in its place: "
        return replace(best, reason=f"{how}{best.reason}", in_place=True)
    if len(goes_back_without_a_process(k, gaps)) == k.world_size:
        back = f"a lost rank begins anew in its place, and all go back to their copies, {steps_back(k)}"
        return LevelDecision(Level.PARTLY, f"{NO_SPARE}: {back}. {with_one}", True, cause=Cause.NO_SPARE)
    spent = f" ({k.respawns_spent})" if k.respawns_spent else ""
    instead = f"so a lost rank ends the job in {JIT_CHECKPOINT}"
    why = f"{NO_SPARE}{spent}, {instead}. {with_one}"
    return LevelDecision(Level.UNPROTECTED, why, True, cause=Cause.NO_SPARE)


def _with_a_spare(k: Known, gaps: Sequence[RankGap]) -> LevelDecision:
    if k.losses_barred:
        return LevelDecision(Level.PARTLY, f"only planned moves: {k.losses_barred}", cause=Cause.PLANNED_ONLY)
    alone = [g for g in gaps if g.effect == ALONE]
    if len({rank for g in alone for rank in g.ranks}) == k.world_size:
        held = all(g.kind == "no-replica" for g in alone)
        why = "no rank's tensors are held by another one as well" if held else alone[0].text
        return LevelDecision(Level.PARTLY, f"only planned moves: {why}", cause=Cause.NO_REPLICA if held else Cause.GAPS)
    refuted = sorted({rank for g in gaps if g.effect == NO_JOINER for rank in g.ranks})
    if refuted:
        plural = "s" * (len(refuted) > 1)
        none_is_left = len(refuted) == k.world_size and not goes_back(k, gaps).issuperset(refuted)
        who = "no rank could be replaced" if none_is_left else f"rank{plural} {listed(refuted)} could not be replaced"
        return LevelDecision(
            Level.UNPROTECTED if none_is_left else Level.PARTLY,
            f"{who}{_refutes(gaps)}; {_instead(k, gaps, refuted)}",
            cause=Cause.GAPS,
        )
    if gaps and all(g.effect == GOES_BACK for g in gaps):
        what = f"any rank can be replaced; without warning all go back to copies, {steps_back(k)}"
    elif gaps:
        what = f"any rank can be replaced, with {len(gaps)} exception{'s' if len(gaps) > 1 else ''}"
    elif own := sorted(without_replica(k)):
        plural = "s" if len(own) > 1 else ""
        what = f"any rank can be replaced; a loss of rank{plural} {listed(own)} in the midst of an update takes all back to copies"
    else:
        what = "any rank can be replaced, at any moment of a step"
    return _with_machines(k, gaps, what)


def _with_machines(k: Known, gaps: Sequence[RankGap], what: str) -> LevelDecision:
    level, cause = (Level.PARTLY, Cause.GAPS) if gaps else (Level.PROTECTED, Cause.COVERED)
    if gaps and all(g.kind == "no-replica" for g in gaps):
        cause = Cause.NO_REPLICA
    if k.nodes < 2:
        return LevelDecision(level, what, cause=cause)
    if machine_uncovered(k):
        lacks = on_one_machine(k) or k.short_of_spares or f"no other {k.place} has all that its ranks hold yet"
        why = f"{what}; but the loss of a whole {k.place} ends the job: {lacks}"
        return LevelDecision(Level.PARTLY, why, cause=cause if cause is not Cause.COVERED else Cause.MACHINE)
    led = f": {LED}" if k.leads_itself else ""
    return LevelDecision(level, f"{what}, and so can those of a {k.place} that is lost{led}", cause=cause)


def _refutes(gaps: Sequence[RankGap]) -> str:
    """Return in words what has shown that a rank could not be replaced."""
    seen = next((g.text for g in gaps if g.effect == NO_JOINER and g.kind != "rehearsal"), "")
    return f": {seen}" if seen else ", as a rehearsal has shown"


def _instead(k: Known, gaps: Sequence[RankGap], refuted: Sequence[int]) -> str:
    if goes_back(k, gaps).issuperset(refuted):
        return f"if one is lost, all try to begin anew from their copies, {steps_back(k)}; the job ends where that fails, too"
    return f"{JIT_CHECKPOINT} is what is left if one is lost"
