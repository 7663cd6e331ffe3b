"""Which events are worth a message to a person, and its words. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from torchrelay.cli.display.render import count, listed
from torchrelay.cli.display.summary import RunSummary
from torchrelay.protocol import events
from torchrelay.protocol.words.level import Level
from torchrelay.protocol.words.phases import CLEARED, COMMITTED, RESUME, SAVE


class NoticeKind(str, Enum):
    """What a notice is about. The values are those of `--notify-on`."""

    MIGRATED = "migrated"
    NOT_MIGRATED = "not-migrated"
    SPARES_LOW = "spares-low"
    UNPROTECTED = "unprotected"
    NEEDS_PERSON = "needs-person"
    RESTARTED = "restarted"
    ENDED = "ended"


@dataclass(frozen=True)
class JobNotice:
    """`text`: one sentence. `hint`: what to do, as a command where there is one; may be empty."""

    kind: NoticeKind
    text: str
    hint: str = ""


def notice(before: RunSummary, now: RunSummary, event: events.Occurrence) -> JobNotice | None:
    """Return what is worth saying of `event`, if anything is. `before`, `now`: the summary without and with it."""
    run = now.run_id
    match event:
        case events.MigrationFinished() if event.kind not in (RESUME, SAVE) and event.outcome != CLEARED:
            return _migrated(event, run)
        case events.MoveNotMade() if not event.migration:
            return JobNotice(
                NoticeKind.NOT_MIGRATED, f"Rank {event.rank} was to move ({event.asked}) and did not: {event.reason}"
            )
        case events.SparesChanged() if _has_run_out(event) and before.pool and not _has_run_out(before.pool):
            return JobNotice(NoticeKind.SPARES_LOW, f"There is no spare: {event.reason or 'none is being made'}")
        case events.Protection() if Level(event.level) is Level.UNPROTECTED and before.was_protected:
            if before.protection is Level.UNPROTECTED and before.protection_reason == event.reason:
                return None
            return JobNotice(
                NoticeKind.UNPROTECTED, f"The job is not protected: {event.reason}", f"torchrelay status --run {run}"
            )
        case events.HealthVerdict() if event.outcome == "refused":
            text = f"Something is wrong, and nothing is done about it: {event.reason}"
            return JobNotice(NoticeKind.NEEDS_PERSON, text, f"torchrelay status --run {run}")
        case events.IncidentKept():
            kept = f"what is needed to find the cause is in {event.directory}" if event.directory else ""
            return JobNotice(NoticeKind.NEEDS_PERSON, f"A promise was not kept: {event.reason}", kept)
        case events.JobRestarted():
            whence = f"at step {event.boundary}" if event.boundary >= 0 else "from the script's beginning"
            return JobNotice(NoticeKind.RESTARTED, f"All processes start anew, {whence}: {event.reason}")
    return None


def ending(summary: RunSummary, exit_code: int, hint: str = "") -> JobNotice:
    """Return what is said of the end of the command. `hint`: how to go on."""
    steps = f" after {count(summary.boundary, 'step')}" if summary.boundary > 0 else ""
    if exit_code == 0:
        return JobNotice(NoticeKind.ENDED, f"Finished{steps}")
    reason = f": {summary.reason}" if summary.reason else ""
    return JobNotice(NoticeKind.ENDED, f"Ended with exit code {exit_code}{steps}{reason}", hint)


def _has_run_out(pool: events.SparesChanged) -> bool:
    """Whether none is ready and none is on its way."""
    return pool.wanted > 0 and not pool.ready and not pool.making


def _migrated(event: events.MigrationFinished, run: str) -> JobNotice:
    ranks = f"Rank {event.rank}" if len(event.ranks) == 1 else f"Ranks {listed(event.ranks)}"
    hint = f"torchrelay explain {event.migration} --run {run}"
    if event.outcome != COMMITTED:
        return JobNotice(NoticeKind.NOT_MIGRATED, f"{ranks} did not move ({event.outcome}): {event.reason}", hint)
    redone = f", {count(event.steps_redone, 'step')} done again" if event.steps_redone else ", no step lost"
    stood_s = sum(event.downtime_s.values())
    return JobNotice(
        NoticeKind.MIGRATED, f"{ranks} moved to {listed(event.spares)}: {stood_s:.1f} s of standstill{redone}", hint
    )
