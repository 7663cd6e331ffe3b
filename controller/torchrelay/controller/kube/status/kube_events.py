"""The events that `kubectl describe` shows of a job and its migrations, one for each turn of the story. Pure."""

from __future__ import annotations

import datetime as dt
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from torchrelay.controller.kube.decide.ladder import TAKEN, Tried
from torchrelay.protocol.events import (
    Decision,
    HealthVerdict,
    IncidentKept,
    JobFinished,
    MigrationFinished,
    MigrationStarted,
    MoveNotMade,
    Occurrence,
    Protection,
    QuarantineCleared,
    SparesAsked,
    SparesChanged,
)
from torchrelay.protocol.health.kinds import DONE, NOBODY, NODE, OBSERVED, REFUSED
from torchrelay.protocol.kube import kube_names as kube
from torchrelay.protocol.kube.object_names import beginning
from torchrelay.protocol.words.level import Level
from torchrelay.protocol.words.phases import ACHIEVED, UNFORCED

NORMAL = "Normal"
WARNING = "Warning"
_LEVELS = {
    Level.PENDING: "Pending",
    Level.ARMED: "Armed",
    Level.UNPROTECTED: "Unprotected",
    Level.PARTLY: "PartlyProtected",
    Level.PROTECTED: "Protected",
}
MOST_BYTES = 1024
"""The most bytes of an event's message, as the API server allows it."""


@dataclass(frozen=True)
class KubeEvent:
    """An event to write. `migration`: the number of the migration that it is about, too. The job gets every event but decisions."""

    warning: bool
    reason: str
    message: str
    time_s: float
    migration: str = ""
    for_job: bool = True


def tell(what: Occurrence, time_s: float) -> KubeEvent | None:
    """Return the event for an occurrence; None for one that is no turn of the story."""
    match what:
        case MigrationStarted():
            who = f", rank {what.rank}" if what.rank >= 0 else ""
            text = f"{what.kind}{who}: {what.reason}"
            return KubeEvent(what.kind not in UNFORCED, "MigrationStarted", text, time_s, what.migration)
        case MigrationFinished():
            done = what.outcome in ACHIEVED
            where = f"rank {what.rank} lives in {what.spare.partition(':')[0]}; " if done and what.spare else ""
            reason = f"Migration{what.outcome.capitalize()}"
            return KubeEvent(not done, reason, f"{where}{what.reason}", time_s, what.migration)
        case Decision():
            return KubeEvent(False, "Decision", what.text, time_s, what.migration, for_job=False)
        case MoveNotMade():
            text = f"rank {what.rank} was to move ({what.asked}) and did not: {what.reason}"
            return KubeEvent(True, "MoveNotMade", text, time_s, what.migration)
        case Protection():
            return KubeEvent(what.level == Level.UNPROTECTED, _LEVELS[Level(what.level)], what.reason, time_s)
        case HealthVerdict():
            return _tell_verdict(what, time_s)
        case QuarantineCleared():
            by = f" (cleared by {what.by})" if what.by else ""
            return KubeEvent(False, "QuarantineCleared", f"{what.subject} may be used again: {what.reason}{by}", time_s)
        case SparesAsked():
            more = f"{abs(what.count)} {'more' if what.count > 0 else 'fewer'}"
            by = f", asked for by {what.by}" if what.by else ""
            return KubeEvent(
                False, "SparesAsked", f"there are to be {what.wanted} spares from now on, {more}{by}", time_s
            )
        case IncidentKept():
            text = f"the job was {what.level} ({what.promised}), and yet: {what.reason}"
            return KubeEvent(True, "PromiseNotKept", text, time_s, what.migration)
        case JobFinished():
            reason = "JobFailed" if what.exit_code else "JobFinished"
            return KubeEvent(bool(what.exit_code), reason, f"exit code {what.exit_code}: {what.reason}", time_s)
    return None


def _tell_verdict(what: HealthVerdict, time_s: float) -> KubeEvent | None:
    """Return the event for a verdict that was not carried out, or that bars a device or node from now on.

    What was done about a verdict is told as a migration's story.
    """
    aside = what.node if what.quarantine == NODE else what.subject or what.node
    aside = f"{aside} is given no rank any more" if what.quarantine != NOBODY else ""
    who = f" rank {', '.join(map(str, what.ranks))}" if what.ranks else ""
    if what.outcome == OBSERVED:
        return KubeEvent(True, "Observed", f"would {what.action}{who}: {what.reason}", time_s)
    if what.outcome == REFUSED:
        text = f"{what.action}{who}: {what.reason}"
        return KubeEvent(True, "VerdictRefused", f"{text}; {aside}" if aside else text, time_s)
    if what.outcome == DONE and aside:
        return KubeEvent(True, "Quarantined", f"{aside}: {what.reason}", time_s)
    return None


class SparesEvents:
    """Tells when a job has run out of spares, and when it has all of them: not each number between."""

    def __init__(self) -> None:
        self._said: bool | None = None
        """Whether all are ready was told last; None where neither that nor that there is none was."""

    def tell(self, now: SparesChanged, time_s: float) -> KubeEvent | None:
        if now.wanted == 0:
            self._said = None
            return None
        ready = now.ready >= now.wanted
        if not ready and (now.ready or now.making):
            return None
        if ready == self._said:
            return None
        self._said = ready
        if ready:
            return KubeEvent(False, "SparesReady", f"{now.ready} of {now.wanted} spares are ready", time_s)
        why = now.reason or "none is being made"
        return KubeEvent(
            True, "NoSpare", f"no spare is ready: {why}; a rank that is lost now cannot move to one", time_s
        )


def events_of_rungs(tried: Sequence[Tried], migration: str, time_s: float) -> list[KubeEvent]:
    return [
        KubeEvent(
            t.outcome != TAKEN,
            "RungTaken" if t.outcome == TAKEN else "RungRefused",
            f"{t.rung}: {t.reason}",
            time_s,
            migration,
        )
        for t in tried
    ]


def event(kube_event: KubeEvent, kind: str, namespace: str, name: str, uid: str) -> dict[str, Any]:
    """Return the manifest of an event about one of torchrelay's objects."""
    at = dt.datetime.fromtimestamp(kube_event.time_s, dt.timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")
    return {
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": {"generateName": f"{beginning(name, 50)}.", "namespace": namespace},
        "involvedObject": {
            "apiVersion": kube.API_VERSION,
            "kind": kind,
            "name": name,
            "namespace": namespace,
            "uid": uid,
        },
        "type": WARNING if kube_event.warning else NORMAL,
        "reason": kube_event.reason,
        "message": kube_event.message.encode()[:MOST_BYTES].decode(errors="ignore"),
        "firstTimestamp": at,
        "lastTimestamp": at,
        "count": 1,
        "source": {"component": "torchrelay-controller"},
    }
