"""Conditions of a TrainingJob: what `kubectl wait` and other controllers ask for."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import Enum
from typing import Any, NamedTuple, TypeVar

from torchrelay.controller.kube.status.losses import timestamp
from torchrelay.controller.status import JobSummary
from torchrelay.protocol.words.level import Level


class ConditionType(str, Enum):
    PROTECTED = "Protected"
    """A rank that is lost now would be replaced, or all would go back to copies."""
    DEGRADED = "Degraded"
    """Something is not as was asked for: ranks are away, or protection or spares are less."""
    SPARES_READY = "SparesReady"
    """As many spares as were asked for could take over now."""


AnyCondition = TypeVar("AnyCondition", bound=Enum)


class ConditionState(NamedTuple):
    """`reason` is one word in CamelCase, as Kubernetes wants it; `message` is for people."""

    holds: bool
    reason: str
    message: str


def condition(kind: str, holds: bool, reason: str, message: str, at: str) -> dict[str, str]:
    """Return a condition in the form of Kubernetes' API. `at`: since when `holds` is so."""
    return {"type": kind, "status": str(holds), "reason": reason, "message": message, "lastTransitionTime": at}


def find_conditions(now: JobSummary, spares_wanted: int | None, is_over: bool) -> dict[ConditionType, ConditionState]:
    """Say which conditions hold. `spares_wanted`: by the job's spec; None where a pool says so. Pure."""
    if is_over:
        over = ConditionState(False, "Finished", "the job is over")
        return dict.fromkeys(ConditionType, over)
    level = Level(now.level)
    wanted = max(now.spares_total, spares_wanted or 0)
    spares = find_spares_ready(now.spares_warm, wanted, "the job asks for no spares")
    return {
        ConditionType.PROTECTED: ConditionState(level.promises, level.value.capitalize(), now.reason or level.words),
        ConditionType.DEGRADED: _degraded(now, level, spares, bool(wanted)),
        ConditionType.SPARES_READY: spares,
    }


def find_spares_ready(warm: int, wanted: int, none: str) -> ConditionState:
    """Say whether as many as are wanted could take over now. `none`: said where none is wanted. Pure."""
    if not wanted:
        return ConditionState(False, "NoSpares", none)
    ready = warm >= wanted
    return ConditionState(ready, "Ready" if ready else "NotReady", f"{warm} of {wanted} spares are ready")


def _degraded(now: JobSummary, level: Level, spares: ConditionState, wants_spares: bool) -> ConditionState:
    running = now.states.get("running", 0) + now.states.get("finished", 0)
    away = {state: count for state, count in now.states.items() if state in ("lost", "standing") and count}
    if away:
        what = ", ".join(f"{count} {state}" for state, count in sorted(away.items()))
        return ConditionState(True, "RanksAway", f"{running} of {now.world_size} ranks run; {what}")
    if level in (Level.PARTLY, Level.UNPROTECTED):
        return ConditionState(
            True, f"{level.value.capitalize()}", f"{level.words}: {now.reason}" if now.reason else level.words
        )
    if level is Level.PROTECTED and wants_spares and not spares.holds:
        return ConditionState(True, "SparesMissing", spares.message)
    return ConditionState(False, "AsWanted" if level.promises else "Starting", now.reason or level.words)


class Conditions:
    """Keeps since when each condition is as it is. `before`: as another controller has written them."""

    def __init__(self, before: Sequence[Mapping[str, Any]] = ()) -> None:
        self._since = {c["type"]: (c["status"], c["lastTransitionTime"]) for c in before}

    def as_status(self, found: Mapping[AnyCondition, ConditionState], time_s: float) -> list[dict[str, str]]:
        """Return them in the form of the API. `time_s`: the time of day."""
        listed = []
        for kind, (holds, reason, message) in found.items():
            name = str(kind.value)
            status, since = self._since.get(name, ("", ""))
            if status != str(holds):
                since = timestamp(time_s)
                self._since[name] = str(holds), since
            listed.append(condition(name, holds, reason, message, since))
        return listed
