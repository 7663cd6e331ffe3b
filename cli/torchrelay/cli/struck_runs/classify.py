"""What became of a cell, and why. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from torchrelay.cli.display.summary import MigrationSummary, RestartSummary, RunSummary
from torchrelay.cli.struck_runs.cells import REFILL, RESPAWN, RESTART
from torchrelay.protocol import events
from torchrelay.protocol.names import EXIT_NO_SPARE_LEFT
from torchrelay.protocol.words.order_words import says_could_not, says_failed
from torchrelay.protocol.words.phases import COMMITTED
from torchrelay.protocol.words.process_ends import how_ended

IDENTICAL = "identical"
REDONE = "redone"
"""All numbers are the same, but more than the step in flight was done again."""
FALLBACK = "fallback"
NO_MIGRATION = "no-migration"
NOT_INJECTED = "not-injected"
LOST = "lost"
WRONG = "wrong"
CLASSES = (IDENTICAL, REDONE, FALLBACK, NO_MIGRATION, NOT_INJECTED, LOST, WRONG)
"""From best to worst. Only the first one counts for the score."""

_NOT_REPLACED = " cannot be replaced: "
"""How it says that it did not even begin a migration."""
MAXIMUM_STEPS_REDONE = {"planned": 0, "unplanned": 1}


@dataclass(frozen=True)
class Ran:
    """A run that has ended. `exit_code` None: it was ended at its time limit. `differences`: from the undisturbed run.

    `struck`: whether the fault happened. `kind`: of its cell, where it decides how the loss is to be survived.
    """

    exit_code: int | None
    summary: RunSummary
    occurrences: tuple[events.Occurrence, ...]
    differences: tuple[str, ...]
    struck: bool
    kind: str = ""


@dataclass(frozen=True)
class CellVerdict:
    """The verdict on a cell. `outcome`: one of CLASSES. `reason`: in words; for an identical cell what happened."""

    outcome: str
    reason: str
    steps_redone: int = 0


def classify(ran: Ran) -> CellVerdict:
    """Classify a run. Numbers come first: wrong numbers with an end as if all were well are wrong, whatever else the run says."""
    finished = ran.exit_code in (0, 76)
    if finished and ran.differences:
        return CellVerdict(WRONG, _few(ran.differences))
    if not ran.struck:
        return _without_fault(ran, finished)
    if not finished:
        return _ended_early(ran)
    if ran.kind == RESTART:
        return _begun_anew(ran.summary)
    committed = ran.summary.committed
    if not committed:
        return CellVerdict(NO_MIGRATION, _why_not(ran) or "the fault struck, and no migration was begun")
    if otherwise := _survived_otherwise(ran):
        return CellVerdict(NO_MIGRATION, otherwise)
    too_many = any(m.steps_redone > MAXIMUM_STEPS_REDONE.get(m.kind, 1) for m in committed)
    told = ", then ".join(map(told_of, committed))
    return CellVerdict(REDONE if too_many else IDENTICAL, told, ran.summary.steps_redone)


def _begun_anew(summary: RunSummary) -> CellVerdict:
    """Judge a run that was started anew.

    As in a migration, the step in flight may have been done again: a just-in-time checkpoint costs no more.
    """
    if not summary.restarts:
        return CellVerdict(NO_MIGRATION, "the fault struck, and the job was not started anew")
    steps = summary.steps_of_restarts + summary.steps_redone
    too_many = steps > MAXIMUM_STEPS_REDONE["unplanned"] * len(summary.restarts)
    told = ", then ".join(map(_told_of_restart, summary.restarts))
    return CellVerdict(REDONE if too_many else IDENTICAL, told, steps)


def _told_of_restart(restart: RestartSummary) -> str:
    where = f"at step {restart.boundary}" if restart.boundary >= 0 else "from its beginning"
    down = f" in {restart.down_s:.2f} s" if restart.down_s is not None else ""
    return f"begun anew ({restart.rung}) {where}{down}, {restart.steps or 'none'} done again"


def _survived_otherwise(ran: Ran) -> str:
    """Return why a run in which ranks were taken over does not show what its cell asks about."""
    summary = ran.summary
    if ran.kind == RESPAWN and not summary.respawns:
        return "no process was started in the place of the lost one"
    if ran.kind == REFILL and len(summary.committed) < len(summary.faults_injected):
        return f"{len(summary.faults_injected)} ranks were lost, and {len(summary.committed)} taken over"
    if ran.kind == REFILL and not summary.spares_made:
        return "no new spare was made"
    return ""


def _without_fault(ran: Ran, finished: bool) -> CellVerdict:
    if finished:
        return CellVerdict(NOT_INJECTED, _protection(ran) or "the fault never struck")
    if ran.exit_code is None:
        return CellVerdict(LOST, f"no end within its time, and the fault never struck; {_where(ran)}")
    return CellVerdict(
        LOST, f"exit code {ran.exit_code} before the fault struck: {ran.summary.reason or 'no reason given'}"
    )


def _ended_early(ran: Ran) -> CellVerdict:
    if ran.exit_code is None:
        return CellVerdict(LOST, f"no end within its time; {_where(ran)}")
    if ran.exit_code == EXIT_NO_SPARE_LEFT and ran.summary.checkpoint:
        return CellVerdict(FALLBACK, f"checkpoint: {_why_not(ran) or ran.summary.reason}")
    crashed = _crashed(ran)
    if crashed:
        why = _why_not(ran)
        return CellVerdict(LOST, f"{crashed}; {why}" if why and why not in crashed else crashed)
    named = _protection(ran) or _why_not(ran) or ran.summary.reason.partition(_NOT_REPLACED)[2]
    if named:
        return CellVerdict(FALLBACK, f"stopped: {named}")
    return CellVerdict(LOST, f"exit code {ran.exit_code}: {ran.summary.reason or 'no reason given'}")


def _crashed(ran: Ran) -> str:
    """Return which rank ended though nothing struck it: by a signal of its own, or with an exception. Empty if none did."""
    if says_failed(ran.summary.reason):
        return ran.summary.reason
    for e in ran.occurrences:
        if isinstance(e, events.WorkerEnded) and not e.fenced and e.signal in (4, 6, 7, 8, 11):
            return f"rank {e.rank} ({e.worker}) {how_ended(e.signal, 0)}"
    return ""


def _why_not(ran: Ran) -> str:
    """Return why the last migration that was begun did not happen, in the controller's words.

    If no spare is left, the cause is what the spare could not do.
    """
    for e in ran.occurrences:
        if isinstance(e, events.Decision) and says_could_not(e.text):
            return e.text.partition(": ")[2] or e.text
    given_up = [m for m in ran.summary.moves if m.outcome != COMMITTED and m.outcome_reason]
    return given_up[-1].outcome_reason if given_up else ""


def _protection(ran: Ran) -> str:
    if ran.summary.was_protected:
        return ""
    return f"not protected: {ran.summary.protection_reason or 'protection was never on'}"


def _where(ran: Ran) -> str:
    under_way = [m for m in ran.summary.moves if m.outcome == "under way"]
    if under_way:
        return f"a migration stood in {under_way[-1].phase or 'its first phase'}"
    return f"{_why_not(ran) or _protection(ran) or 'no migration was under way'}, after step {ran.summary.boundary}"


def told_of(migration: MigrationSummary) -> str:
    """Return what happened, in words."""
    again = f"{migration.steps_redone} done again" if migration.steps_redone else "none done again"
    return f"{migration.kind} of rank {', '.join(map(str, migration.ranks))} in {migration.total_s:.2f} s, {again}"


def _few(texts: Sequence[str], count: int = 4) -> str:
    more = f" and {len(texts) - count} more" if len(texts) > count else ""
    return "; ".join(texts[:count]) + more
