"""What the command says about events as they come, and at the end. Pure: events and summaries in, lines out.

Each message says what happened, to which rank, and what it costs; `hint:` has a command that works when pasted. Details are for
`--verbose`. docs/messages.md has them all: python scripts/generate_messages_page.py.
"""

from __future__ import annotations

import re
import shlex
import signal

from rich.console import RenderableType
from rich.text import Text

from torchrelay.cli.display import render
from torchrelay.cli.display.rungs import rungs_taken
from torchrelay.cli.display.summary import RunSummary
from torchrelay.dashboard import words
from torchrelay.protocol import events
from torchrelay.protocol.health.kinds import IGNORE
from torchrelay.protocol.kube.kube_names import NEXT_SPARE
from torchrelay.protocol.messages import Coverage
from torchrelay.protocol.names import (
    EXIT_FAULT_NOT_INJECTED,
    EXIT_NO_SPARE_LEFT,
    REHEARSAL_BROKEN_OFF,
    REHEARSAL_OPEN,
    REHEARSAL_SAME,
)
from torchrelay.protocol.transport.wire import from_plain
from torchrelay.protocol.words.causes import ProtectionCause
from torchrelay.protocol.words.level import Level
from torchrelay.protocol.words.phases import ABANDONED, CHECKPOINT, CLEARED, PLANNED, RESUME, ROLLBACK, SAVE, SAVED
from torchrelay.protocol.words.rank_words import JOB_OVER, WAITS_FOR_SPARE
from torchrelay.protocol.words.rehearsal_words import sentence

SHOWN_CALLS = 8
HOW_FAR_EVERY_S = 5.0
"""So often a line says how far tensors are, where nothing shows a bar."""
_LEVEL_STYLES = {"warning": "yellow", "error": "red"}
_WORDS = {style: f"{level}: " for level, style in _LEVEL_STYLES.items()}


def line(text: str, style: str = "") -> Text:
    """Return one line. It begins with `error:` or `warning:` where its style says so, which a pipe does not show.

    A line that begins with spaces belongs to the one before it, and has no such word.
    """
    word = "" if text.startswith(" ") else _WORDS.get(style, "")
    return Text.assemble((word, f"bold {style}"), (text, style))


def hint(command: str) -> Text:
    """Return a line that says what to do: a command that works when pasted."""
    return Text(f"hint: {command}", style="dim")


def _of(command: str, summary: RunSummary) -> str:
    """Return the command with the option that names this run."""
    return f"torchrelay {command} --run {summary.run_id}" if summary.run_id else f"torchrelay {command}"


def _explain(migration: str, summary: RunSummary) -> list[Text]:
    """Return a hint to the whole story. There is none for a run that is not kept: its story is gone when it is over."""
    return [hint(_of(f"explain {migration}", summary))] if summary.is_kept else []


def notes(before: RunSummary, event: events.Occurrence, verbose: bool = False) -> list[Text]:
    """Return what one event is worth telling. `before`: the summary without it; `verbose`: details, too."""
    return _details(before, event) if verbose and isinstance(event, _DETAILS) else _notes(before, event, verbose)


_DETAILS = (events.Decision, events.PhaseChanged, events.SpareMade)


def _details(before: RunSummary, event: events.Occurrence) -> list[Text]:
    match event:
        case events.Decision():
            return [line(f"  {event.text}")]
        case events.PhaseChanged():
            migration = before.migration(event.migration)
            last = migration.phase if migration else ""
            return [line(f"  {render.phase(last)}: {render.seconds(event.before_s)} s", "dim")] if last else []
        case events.SpareMade():
            place = f" in the place of {event.in_place_of}" if event.in_place_of else ""
            return [line(f"spare {event.worker} is being made on {event.node}{place}", "dim")]
    return []


def _notes(before: RunSummary, event: events.Occurrence, verbose: bool) -> list[Text]:  # noqa: C901 - one case for each event
    match event:
        case events.JobStarted():
            return [line(f"{render.count(event.world_size, 'rank')}, {render.count(event.spares, 'spare')}")]
        case events.Protection():
            return _protection(before, event)
        case events.ReportMade():
            new = [text for text in event.unprotected if text not in before.unprotected]
            return [line(f"a rank that is replaced goes on without this: {text}", "yellow") for text in new]
        case events.CoverageKnown():
            return _covered(before, from_plain(Coverage, event.coverage))
        case events.RehearsalFinished():
            return _rehearsed(before, event)
        case events.FaultFired():
            return [line(f"fault injected: {event.fault}", "magenta")]
        case events.Suspected():
            return _suspected(event, verbose)
        case events.HealthVerdict() if event.action != IGNORE:
            return _verdict(before, event)
        case events.QuarantineCleared():
            return [line(f"{event.subject} may be used again{_because(event.reason)}{_by(event.by)}")]
        case events.MigrationStarted():
            return [_started(event)]
        case events.MigrationProgressed():
            return _how_far(before, event)
        case events.MigrationFinished():
            return _finished(before, event)
        case events.NodeLost():
            return [_node_lost(event)]
        case events.FilesDiffer():
            return [line(event.reason, "yellow")]
        case events.ProcessRespawned():
            return [_respawned(event)]
        case events.SpareDropped():
            return [
                line(f"spare {event.worker} is of no use: {event.reason}; training goes on", "yellow"),
                hint(_of("spares", before)),
            ]
        case events.SparesAsked():
            where = f" on {event.node}" if event.node else ""
            more = f"{render.count(abs(event.count), 'spare')} {'more' if event.count > 0 else 'fewer'}{where}"
            return [line(f"{more}: there are to be {event.wanted} from now on{_by(event.by)}")]
        case events.SparesChanged() if event.reason and (before.pool is None or before.pool.reason != event.reason):
            return [line(f"{render.spares(event)}: {event.reason}", "yellow")]
        case events.IncidentKept():
            return [_incident(event), *_explain(event.migration, before)]
        case events.TakenOver():
            return [line(f"another controller leads the job, training goes on{_because(event.reason)}", "yellow")]
        case events.JobRestarted():
            return [_restarted(event)]
        case events.RestartDone():
            return [line(f"all ranks train again, {render.seconds(event.elapsed_s)} s after the loss", "green")]
        case events.MoveNotMade():
            record = before.migration(event.migration)
            told = record is not None and record.outcome == ABANDONED
            overtaken = event.reason.startswith(JOB_OVER)  # how the job ends is told, too
            return [] if told or (overtaken and not verbose) else [_not_moved(event)]
        case events.Log() if event.level in _LEVEL_STYLES:
            return [line(event.text, _LEVEL_STYLES[event.level])]
    return []


def _respawned(event: events.ProcessRespawned) -> Text:
    how_often = f"{event.count} of {event.limit} within the hour"
    return line(f"  respawn: a new process is started for rank {event.rank} on {event.node} ({how_often})", "yellow")


def _restarted(event: events.JobRestarted) -> Text:
    whence = f"from {event.directory}, at step {event.boundary}" if event.directory else "from the script's beginning"
    redone = f"; {render.count(event.steps, 'step')} done before" if event.steps else ""
    tried = "".join(f"; not {text}" for text in event.tried)
    text = f"restart {event.restart} ({event.rung}): all processes start anew {whence}{redone}{tried}{_because(event.reason)}"
    return line(text, "yellow")


def _suspected(event: events.Suspected, verbose: bool) -> list[Text]:
    evidence = f" ({event.evidence})" if event.evidence and verbose else ""
    stack = [line(f"    {call}", "dim") for call in event.stack[:SHOWN_CALLS]]
    return [line(f"rank {event.rank} seems to hang{_because(event.reason)}{evidence}", "yellow"), *stack]


_JUDGED = {"watch": "watched", "migrate": "to move", "replace": "to be replaced"}


def _verdict(before: RunSummary, event: events.HealthVerdict) -> list[Text]:
    is_one = len(event.ranks) == 1
    who = f"rank{'' if is_one else 's'} {render.listed(event.ranks)}" if event.ranks else ""
    what = f"{event.action} {who}".strip()
    if event.outcome == "observed":
        told = [line(f"torchrelay only observes, and would {what}: {event.reason}", "yellow")]
    elif event.outcome == "refused":
        told = [line(f"torchrelay does not {what} by itself: {event.reason}", "red")]
    elif who and event.action in _JUDGED:
        told = [line(f"{who} {'is' if is_one else 'are'} {_JUDGED[event.action]}: {event.reason}", "yellow")]
    else:
        told = [line(f"{what}: {event.reason}", "yellow")]
    if event.outcome == "observed" or event.quarantine not in ("device", "node"):
        return told
    subject = event.node if event.quarantine == "node" else event.subject
    again = _of(f"quarantine clear {shlex.quote(subject)} --reason repaired", before)
    return [*told, line(f"  {subject} is given no rank from now on"), hint(again)]


def _protection(before: RunSummary, event: events.Protection) -> list[Text]:
    level = Level(event.level)
    if level is Level.ARMED and event.cause == ProtectionCause.SET_UP.value:
        spares = f" ({render.spares(before.pool)})" if before.pool is not None and before.pool.wanted else ""
        return [line(f"set-up is done; protection starts with the first step{spares}", "dim")]
    if level is before.protection and _without_numbers(event.reason) == _without_numbers(before.protection_reason):
        return []  # such as how often copies are made: `torchrelay status` has the latest
    style = {Level.PROTECTED: "", Level.ARMED: "dim"}.get(level, "yellow")
    told = [line(f"{level.words}{_because(event.reason)}", style)]
    if level not in (Level.UNPROTECTED, Level.PARTLY):
        return told
    pool = before.pool
    can_have_one = event.cause == ProtectionCause.NO_SPARE.value and not (pool is not None and pool.reason)
    if level is Level.UNPROTECTED:
        told.append(line("  a rank that is lost now is not replaced", "yellow"))
    return [*told, hint(_of("spares add 1" if can_have_one else "status", before))]


def _without_numbers(reason: str) -> str:
    return re.sub(r"\d+", "", reason)


def _covered(before: RunSummary, now: Coverage) -> list[Text]:
    """Say where the training loop is, and how many gaps there are. The level has a line of its own."""
    last = before.coverage
    if not now.file or (last is not None and (last.file, bool(last.gaps)) == (now.file, bool(now.gaps))):
        return []
    more = f"; {render.count(len(now.gaps), 'gap')}: `torchrelay status` has the report" if now.gaps else ""
    return [line(f"training loop {now.file}:{now.line}{more}", "yellow" if now.gaps else "")]


def _rehearsed(before: RunSummary, event: events.RehearsalFinished) -> list[Text]:
    """Say how a rehearsal ended, unless the previous one of this rank has said the same."""
    last = before.rehearsals.get(event.rank)
    known = last is not None and (last.outcome, last.reason) == (event.outcome, event.reason)
    if known or event.outcome == REHEARSAL_BROKEN_OFF:
        return []
    style = {REHEARSAL_SAME: "", REHEARSAL_OPEN: "dim"}.get(event.outcome, "yellow")
    said = sentence(event.outcome, event.rank, event.world_size, event.boundary, event.reason)
    places = [line(f"    {gap['file']}:{gap['line']}", style) for gap in event.gaps if gap["file"]]
    return [line(said, style), *places]


def _started(event: events.MigrationStarted) -> Text:
    if event.kind == RESUME:
        return line(f"all ranks enter from a checkpoint{_because(event.reason)}")
    if event.kind == SAVE:
        return line(f"all ranks save a checkpoint at one of the next steps{_because(event.reason)}{_by(event.by)}")
    if event.kind == ROLLBACK:
        return line(
            f"migration {event.migration}: nobody holds what rank {event.rank} had; all ranks go back to their copies",
            "yellow",
        )
    named = event.reason.startswith(f"rank {event.rank} (")  # then the reason alone says it
    if event.kind != PLANNED and named:
        text = f"{event.reason}; it is to be replaced"
    else:
        what = "is to move" if event.kind == PLANNED else "is lost"
        text = f"rank {event.rank} {what}{_because(event.reason)}"
    return line(f"migration {event.migration}: {text}{_by(event.by)}", "" if event.kind == PLANNED else "yellow")


def _how_far(before: RunSummary, event: events.MigrationProgressed) -> list[Text]:
    told_s = before.moving.elapsed_s if before.moving is not None else 0.0
    if event.elapsed_s // HOW_FAR_EVERY_S == told_s // HOW_FAR_EVERY_S:
        return []
    return [line(f"  {render.phase(event.phase)}: {words.how_far(event)}", "dim")]


def _finished(before: RunSummary, event: events.MigrationFinished) -> list[Text]:
    if event.kind == RESUME and event.outcome != ABANDONED:
        return [line("all ranks have entered", "green")]
    if event.kind == SAVE:
        return _saved(before, event)
    who = f"rank {render.listed(event.ranks)}" if len(event.ranks) == 1 else f"ranks {render.listed(event.ranks)}"
    why = _explain(event.migration, before)
    if event.outcome == CLEARED:
        return [line(f"rank {event.rank} moves again, nothing was done")]
    if event.outcome == ABANDONED:
        if event.kind == PLANNED:
            text = f"{who}: the migration was given up{_because(event.reason)}; the job goes on as it was"
        else:
            text = f"{who} cannot be replaced, and nothing could be saved"  # the job ends with the reason
        return [line(text, "red"), *why]
    if event.outcome == CHECKPOINT:
        return [line(f"{who} cannot be replaced: what the ranks held is saved", "red"), *why]
    redone = "no step" if event.steps_redone == 0 else render.count(event.steps_redone, "step")
    downtime = f"{render.seconds(sum(event.downtime_s.values()))} s of downtime"
    if event.kind == ROLLBACK:
        return [line(f"all ranks went back to their copies: {redone} redone, {downtime}", "green"), *why]
    moved = line(f"{who} moved to {render.listed(event.spares)}: {redone} redone, {downtime}", "green")
    return [moved] if event.kind == PLANNED else [moved, *why]


def _saved(before: RunSummary, event: events.MigrationFinished) -> list[Text]:
    if event.outcome == SAVED:
        stood = render.seconds(sum(event.downtime_s.values()))
        return [line(f"{event.reason}; the job goes on, {stood} s of downtime", "green")]
    why = _explain(event.migration, before)
    return [line(f"no checkpoint was saved{_because(event.reason)}; the job goes on as it was", "red"), *why]


def _incident(event: events.IncidentKept) -> Text:
    where = f"what is needed to find the cause is in {event.directory}" if event.directory else "nothing of it is kept"
    level = Level(event.level).words
    return line(
        f"a promise was not kept: the job was {level}, and {event.migration} failed all the same; {where}", "red"
    )


def _node_lost(event: events.NodeLost) -> Text:
    ranks = f"rank {render.listed(event.ranks)}" if len(event.ranks) == 1 else f"ranks {render.listed(event.ranks)}"
    gone = ranks if event.ranks else ""
    if event.spares:
        gone += (" and " if gone else "") + render.count(event.spares, "spare")
    return line(f"{event.node} is lost with {gone}{_because(event.reason)}", "yellow")


def _not_moved(move: events.MoveNotMade) -> Text:
    if move.reason.endswith(WAITS_FOR_SPARE):
        return line(f"rank {move.rank} is to move ({move.asked}), and waits: {move.reason}", "yellow")
    text = f"the planned migration of rank {move.rank} did not take place ({move.asked}){_because(move.reason)}"
    return line(text, "red")


def _by(who: str) -> str:
    return f" (asked for by {who})" if who else ""


def _because(reason: str) -> str:
    return f": {reason}" if reason else ""


def closing(
    summary: RunSummary, exit_code: int, resume_command: str, never_fired: list[str], no_restart: str = ""
) -> list[RenderableType]:
    """Tell the end of a run: tables of migrations or restarts, if any, what was asked for and did not happen, and how it ended.

    `no_restart`: why it was not started again.
    """
    told: list[RenderableType] = []
    if summary.moves:
        told += [Text(), render.migrations_table(summary.moves), Text()]
    if summary.restarts:
        told += [*([] if summary.moves else [Text()]), render.restarts_table(summary.restarts), Text()]
    taken = rungs_taken(summary)
    if any(r.rung != NEXT_SPARE for r in taken):
        told += [render.rungs_table(taken), Text()]
    told += [_not_moved(move) for move in summary.moves_not_made]
    if exit_code == EXIT_NO_SPARE_LEFT and summary.checkpoint:
        told.append(line(summary.reason.partition("; go on with")[0], "red"))
        told += _no_restart(summary, no_restart)
        several = [hint(f"{text}  # on {node}") for node, text in summary.resume_commands.items()]
        told += several or [hint(resume_command)]
    elif exit_code == EXIT_FAULT_NOT_INJECTED and summary.exit_code == 0:
        told += [line(f"the fault {fault} never fired", "red") for fault in never_fired]
    elif exit_code > 128 and summary.reason == f"stopped by {_signal(exit_code - 128)}":
        told.append(stopped(summary, exit_code - 128))  # `torchrelay stop`, or on another machine
    elif exit_code != 0:
        told.append(line(f"ended with exit code {exit_code}{_because(summary.reason)}", "red"))
        told += _no_restart(summary, no_restart)
    else:
        told.append(line(_done(summary)))
    return told


def stopped(summary: RunSummary, number: int) -> Text:
    """Tell the end of a run by a signal: Ctrl-C, or `torchrelay stop`."""
    at = f"after step {summary.boundary}" if summary.boundary > 0 else "before the first step"
    saved = (
        f"the newest checkpoint of torchrelay is in {summary.checkpoint}" if summary.checkpoint else "nothing was saved"
    )
    return line(f"stopped by {_signal(number)}{_by(summary.ended_by)} {at}; {saved}")


def _signal(number: int) -> str:
    return signal.Signals(number).name if number in set(signal.Signals) else f"signal {number}"


def _no_restart(summary: RunSummary, reason: str) -> list[Text]:
    began = [line(f"  it began with: {summary.began_with}")] if summary.began_with else []
    return [*began, *([line(f"  not started again: {reason}")] if reason else [])]


def _done(summary: RunSummary) -> str:
    parts = [f"done in {summary.ended_s - summary.started_s:.1f} s"]
    if summary.boundary > 0:
        parts.append(render.count(summary.boundary, "step"))
    if summary.committed:
        parts.append(render.count(len(summary.committed), "migration"))
        parts.append("no step redone" if summary.steps_redone == 0 else f"{summary.steps_redone} redone")
        parts.append(f"{render.seconds(sum(summary.downtime_s.values()))} s of downtime")
    if summary.restarts:
        parts.append(render.count(len(summary.restarts), "restart"))
        steps = render.count(summary.steps_of_restarts, "step") if summary.steps_of_restarts else "no step"
        parts.append(f"{steps} lost in it" if len(summary.restarts) == 1 else f"{steps} lost in them")
        parts.append(f"{render.seconds(summary.down_s_of_restarts)} s until all trained again")
    if not summary.committed and summary.protection is Level.PENDING:
        parts.append("nothing to protect: the script set up no process group")
    return ", ".join(parts)
