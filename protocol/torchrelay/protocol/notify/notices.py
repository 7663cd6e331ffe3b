"""Which events are worth a message to a person, and its words. Pure."""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import Enum
from typing import Protocol

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
    """One notice. `text`: one sentence. `hint`: what to do, as a command if there is one; may be empty."""

    kind: NoticeKind
    text: str
    hint: str = ""


@dataclass(frozen=True)
class JobCommands:
    """What a person types to ask about a job. `story`: of one migration, whose name is put in place of `{}`, if it has that."""

    status: str
    story: str


class KnownOfJob(Protocol):
    """What was told of a job before an event, as far as it decides whether the event is worth a notice."""

    @property
    def pool(self) -> events.SparesChanged | None: ...
    @property
    def was_protected(self) -> bool: ...
    @property
    def protection(self) -> Level: ...
    @property
    def protection_reason(self) -> str: ...


@dataclass(frozen=True)
class ToldOfJob:
    """What was told of a job, for a program that keeps no other record of it.

    `steps`: that every rank has done, -1 before the first begins.
    """

    pool: events.SparesChanged | None = None
    was_protected: bool = False
    protection: Level = Level.PENDING
    protection_reason: str = ""
    steps: int = -1

    def told(self, event: events.Occurrence) -> ToldOfJob:
        """Return what is known after `event`."""
        match event:
            case events.SparesChanged():
                return replace(self, pool=event)
            case events.Protection():
                level = Level(event.level)
                relied = self.was_protected or level.promises
                return replace(self, protection=level, protection_reason=event.reason, was_protected=relied)
            case events.ProgressMade():
                return replace(self, steps=event.steps)
            case events.JobRestarted():
                return ToldOfJob(was_protected=self.was_protected, steps=event.boundary)
        return self


def notice(before: KnownOfJob, event: events.Occurrence, commands: JobCommands) -> JobNotice | None:
    """Return what is worth saying of `event`; None if nothing is. The end of a job is not handled here but in `ending`."""
    match event:
        case events.MigrationFinished() if event.kind not in (RESUME, SAVE) and event.outcome != CLEARED:
            return _migrated(event, commands)
        case events.MoveNotMade() if not event.migration:
            return JobNotice(
                NoticeKind.NOT_MIGRATED, f"Rank {event.rank} was to move ({event.asked}) and did not: {event.reason}"
            )
        case events.SparesChanged() if _has_run_out(event) and before.pool and not _has_run_out(before.pool):
            return JobNotice(NoticeKind.SPARES_LOW, f"There is no spare: {event.reason or 'none is being made'}")
        case events.Protection() if Level(event.level) is Level.UNPROTECTED and before.was_protected:
            if before.protection is Level.UNPROTECTED and before.protection_reason == event.reason:
                return None
            return JobNotice(NoticeKind.UNPROTECTED, f"The job is not protected: {event.reason}", commands.status)
        case events.HealthVerdict() if event.outcome == "refused":
            text = f"Something is wrong, and nothing is done about it: {event.reason}"
            return JobNotice(NoticeKind.NEEDS_PERSON, text, commands.status)
        case events.IncidentKept():
            kept = f"what is needed to find the cause is in {event.directory}" if event.directory else ""
            return JobNotice(NoticeKind.NEEDS_PERSON, f"A promise was not kept: {event.reason}", kept)
        case events.JobRestarted():
            whence = f"at step {event.boundary}" if event.boundary >= 0 else "from the script's beginning"
            return JobNotice(NoticeKind.RESTARTED, f"All processes start anew, {whence}: {event.reason}")
    return None


def ending(steps: int, exit_code: int, reason: str, hint: str = "") -> JobNotice:
    """Return the notice of a job's end. `hint`: how to go on."""
    after = f" after {_count(steps, 'step')}" if steps > 0 else ""
    if exit_code == 0:
        return JobNotice(NoticeKind.ENDED, f"Finished{after}")
    because = f": {reason}" if reason else ""
    return JobNotice(NoticeKind.ENDED, f"Ended with exit code {exit_code}{after}{because}", hint)


def _has_run_out(pool: events.SparesChanged) -> bool:
    """Return whether no spare is ready and none is being made."""
    return pool.wanted > 0 and not pool.ready and not pool.making


def _migrated(event: events.MigrationFinished, commands: JobCommands) -> JobNotice:
    ranks = f"Rank {event.rank}" if len(event.ranks) == 1 else f"Ranks {', '.join(map(str, event.ranks))}"
    hint = commands.story.replace("{}", event.migration)
    if event.outcome != COMMITTED:
        return JobNotice(NoticeKind.NOT_MIGRATED, f"{ranks} did not move ({event.outcome}): {event.reason}", hint)
    redone = f", {_count(event.steps_redone, 'step')} done again" if event.steps_redone else ", no step lost"
    stood_s = sum(event.downtime_s.values())
    to = ", ".join(event.spares)
    return JobNotice(NoticeKind.MIGRATED, f"{ranks} moved to {to}: {stood_s:.1f} s of standstill{redone}", hint)


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"
