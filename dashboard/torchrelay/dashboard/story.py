"""The story of one migration in plain words: what was seen, by whom, decided by which rule, what it cost. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from torchrelay.dashboard import words
from torchrelay.dashboard.record import OBSERVED, REFUSED, RunRecord
from torchrelay.dashboard.run_facts import Heard, MigrationRecord
from torchrelay.protocol import events
from torchrelay.protocol.words.phases import (
    ABANDONED,
    ACHIEVED,
    CHECKPOINT,
    CLEARED,
    COMMITTED,
    DOWNTIME_ROWS,
    MOVE_ROWS,
    PLANNED,
    RESUME,
    ROLLBACK,
    SAVE,
    SAVED,
    UNFORCED,
    Phase,
)
from torchrelay.protocol.words.process_ends import how_ended

SEEN = "seen"
DECIDED = "decided"
DONE = "done"
WORKING = "working"
WELL = "well"
ACT = "act"
NOTICE = "notice"

_PHASE_SAYS = {
    "detect": "It is given a moment to move again",
    "fence": "What is left of the old process is ended, so that no rank has two holders; its journal is read",
    "prepare": "The new process runs the script's set-up for this rank",
    "quiesce": "The other ranks come to a stand",
    "transfer": "Tensors go to the new process, and it takes over the recorded Python state",
    "rebuild": "All ranks connect anew; who does a step again goes back to its beginning",
    "verify": "All ranks prove to each other that they are connected",
    "first_step": "The new process has the rank; all go on and do the next step",
    "checkpoint": "Nobody can take over: the ranks that live save what they hold",
    "abandoned": "It is given up",
}
_PLANNED_SAYS = {
    "prepare": "The new process runs the script's set-up for this rank; training goes on meanwhile",
    "fence": "The old process is ended, so that no rank has two holders",
}
_SAVE_SAYS = {
    "quiesce": "All ranks come to a stand at the same boundary; training goes on until then",
    "checkpoint": "All ranks save what they hold",
    "over": "All ranks go on",
}
_SAYS = {PLANNED: _PLANNED_SAYS, SAVE: _SAVE_SAYS}
_ALL_RANKS = {RESUME: "entered from a checkpoint", ROLLBACK: "went back to copies"}
ROW_NAMES = {
    "detect": "noticing it",
    "fence": "ending the old process",
    "prepare": "preparing the new process",
    "quiesce": "coming to a stand",
    "transfer": "handing over tensors",
    "rebuild": "connecting anew",
    "verify": "verifying",
    "first_step": "the first step after it",
    "checkpoint": "saving",
    "beside": "prepared while training went on",
}


@dataclass(frozen=True)
class StoryLine:
    """One line of a story.

    `after_s`: seconds since the migration began, negative for what was seen before. `kind`: seen, decided or done.
    `who`: who saw, decided or did it. `took_s`: how long it took; None if that is not known or means nothing.
    """

    after_s: float
    kind: str
    who: str
    text: str
    took_s: float | None = None


@dataclass(frozen=True)
class Segment:
    """A part of a migration's bar. `stood`: training stood still in it."""

    row: str
    name: str
    seconds: float
    stood: bool


@dataclass(frozen=True)
class ToldMigration:
    """The story of a migration. `tone`: working, well, notice or act. `costs` and `to_do`: sentences."""

    key: str
    title: str
    summary: str
    tone: str
    outcome: str
    started_s: float
    bar: tuple[Segment, ...]
    lines: tuple[StoryLine, ...]
    costs: tuple[str, ...]
    to_do: tuple[str, ...]


def tell(record: RunRecord, m: MigrationRecord, now_s: float) -> ToldMigration:
    """Tell the whole story. `now_s` counts while the migration is under way."""
    return ToldMigration(
        m.key,
        title(m),
        summary(m, now_s),
        tone(m),
        m.outcome,
        m.started_s,
        bar(m, now_s),
        _lines(record, m),
        _costs(record, m),
        _to_do(record, m),
    )


def title(m: MigrationRecord) -> str:
    """Return a headline: which ranks, and what became of them."""
    who = words.sentence(words.ranks(m.ranks)).rstrip(".") if m.ranks else "All ranks"
    one = len(m.ranks) == 1
    are, were, have = ("is", "was", "has") if one else ("are", "were", "have")
    if m.kind == SAVE:
        done = "A checkpoint was saved" if m.outcome == SAVED else "No checkpoint was saved"
        return "All ranks save a checkpoint" if m.is_under_way else done
    if m.is_under_way:
        return f"{who} {are} being {'moved' if m.kind == PLANNED else 'replaced'}"
    if m.outcome == COMMITTED:
        if m.kind in _ALL_RANKS:
            return f"All ranks {_ALL_RANKS[m.kind]}"
        return f"{who} moved" if m.kind == PLANNED else f"{who} {were} lost and replaced"
    if m.outcome == CLEARED:
        return f"{who} seemed to hang, and moved again"
    if m.outcome == CHECKPOINT:
        return f"{who} could not be replaced; the state is saved"
    return f"{who} {have} not moved" if m.kind == PLANNED else f"{who} could not be replaced"


def tone(m: MigrationRecord) -> str:
    if m.is_under_way:
        return WORKING
    if m.outcome in (*ACHIEVED, CLEARED):
        return WELL
    return NOTICE if m.kind in UNFORCED else ACT


def summary(m: MigrationRecord, now_s: float) -> str:
    """Return two or three sentences: why, what took over, and what it cost."""
    why = words.sentence(f"why: {m.reason}" if m.kind in UNFORCED and m.reason else m.reason)
    took = words.duration(m.downtime_s)
    if m.is_under_way:
        phase = words.sentence(_says(m.kind, m.phase)) if m.phase else ""
        since = words.duration(max(0.0, now_s - m.started_s))
        stands = "Training stands still." if m.stands_since_s is not None else "Training goes on meanwhile."
        return " ".join(filter(None, (why, phase, f"Under way for {since}. {stands}")))
    if m.outcome == COMMITTED:
        return " ".join(filter(None, (why, _taken_over(m), f"Training stood still for {took}; {_redone(m)}.")))
    if m.outcome == CLEARED:
        return f"{why} It moved again by itself, and nothing was done."
    because = words.sentence(m.outcome_reason)
    if m.outcome == SAVED:
        return f"{because} Training stood still for {took}, and went on. {why}"
    if m.kind == SAVE:
        return f"Nothing was saved, and training went on as before. {because} {why}"
    if m.outcome == CHECKPOINT:
        return f"{why} No process could take over. What the ranks held is saved. {because}"
    if m.kind == PLANNED:
        return f"The move was given up, and training went on as before: {m.outcome_reason or 'not told why'}. {why}"
    return f"{why} Nobody could take over. {because}"


def bar(m: MigrationRecord, now_s: float) -> tuple[Segment, ...]:
    """Return the parts of the migration's time, in the order in which they pass."""
    if m.finished is not None:
        passed = MOVE_ROWS if m.kind == PLANNED else DOWNTIME_ROWS
        rows = [("beside", m.finished.beside_s), *((row, m.finished.downtime_s.get(row, 0.0)) for row in passed)]
        return tuple(Segment(r, ROW_NAMES[r], s, r != "beside") for r, s in rows if s > 0.0)
    told = [h for h in m.heard if isinstance(h.what, events.PhaseChanged)]
    ends = [h.time_s for h in told[1:]] + [m.ended_s if m.ended_s is not None else now_s]
    made = []
    for h, end_s in zip(told, ends):
        row = _row(m.kind, getattr(h.what, "phase", ""))
        if row and end_s > h.time_s:
            made.append(Segment(row, ROW_NAMES.get(row, row), end_s - h.time_s, row != "beside"))
    return tuple(made)


def _row(kind: str, phase: str) -> str:
    if kind == PLANNED and phase == Phase.PREPARING.value:
        return "beside"
    return phase if phase in DOWNTIME_ROWS else ""


def _says(kind: str, phase: str) -> str:
    return _SAYS.get(kind, {}).get(phase) or _PHASE_SAYS.get(phase, phase)


def _taken_over(m: MigrationRecord) -> str:
    if m.finished is None or m.kind in (RESUME, ROLLBACK):
        return ""
    pairs = [f"rank {rank} is held by {spare} now" for rank, spare in zip(m.finished.ranks, m.finished.spares)]
    return words.sentence(words.listed(pairs))


def _redone(m: MigrationRecord) -> str:
    steps = m.finished.steps_redone if m.finished is not None else 0
    if not steps:
        return "no step was done again"
    return f"{words.count(steps, 'step')} {'was' if steps == 1 else 'were'} done again"


def _lines(record: RunRecord, m: MigrationRecord) -> tuple[StoryLine, ...]:
    began = StoryLine(0.0, DECIDED, "the controller", words.sentence(_begun(m)))
    told = [*m.seen, *m.heard]
    lines = [line for h in told for line in _line(record, m, h)]
    before = [line for line in lines if line.after_s < 0.0]
    after = [line for line in lines if line.after_s >= 0.0]
    end = []
    if m.ended_s is not None:
        end = [StoryLine(m.ended_s - m.started_s, DONE, "the controller", words.sentence(_ended(m)))]
    return (*before, began, *_with_times(after, m), *end)


def _with_times(lines: list[StoryLine], m: MigrationRecord) -> list[StoryLine]:
    """Give each phase its duration: it lasts until the next one begins."""
    phases = [n for n, line in enumerate(lines) if line.took_s is not None]
    ends = [lines[n].after_s for n in phases[1:]] + [m.ended_s - m.started_s if m.ended_s is not None else -1.0]
    made = list(lines)
    for n, end_s in zip(phases, ends):
        line = lines[n]
        took_s = end_s - line.after_s if end_s >= line.after_s else None
        made[n] = StoryLine(line.after_s, line.kind, line.who, line.text, took_s)
    return made


def _begun(m: MigrationRecord) -> str:
    what = {
        PLANNED: "a planned move begins: the rank is moved while it still runs",
        RESUME: "all ranks enter from a checkpoint",
        ROLLBACK: "all ranks go back to their copies",
        SAVE: "a checkpoint is to be saved, and training is to go on",
    }
    asked = f"Asked for by {m.by}. " if m.by else ""
    return f"{what.get(m.kinds[0], 'a replacement begins')}. {asked}Why: {m.reason or 'not told'}"


def _ended(m: MigrationRecord) -> str:
    said = {
        COMMITTED: "it is done",
        ABANDONED: "it is given up",
        CHECKPOINT: "it ends in a just-in-time checkpoint",
        SAVED: "it is done, and all go on",
        CLEARED: "the suspicion did not hold; nothing was done",
    }
    return f"{said.get(m.outcome, m.outcome)}{': ' + m.outcome_reason if m.outcome_reason else ''}"


def _line(record: RunRecord, m: MigrationRecord, heard: Heard) -> list[StoryLine]:  # noqa: C901 - one case for each event
    after_s = heard.time_s - m.started_s

    def line(kind: str, who: str, text: str, took_s: float | None = None) -> list[StoryLine]:
        return [StoryLine(after_s, kind, who, words.sentence(text), took_s)]

    match heard.what:
        case events.FaultFired() as e:
            return line(SEEN, "a test (--inject)", f"the fault {e.fault} strikes rank {e.rank} in step {e.step:,}")
        case events.Suspected() as e:
            stack = f"; its training thread was in {e.stack[0]}" if e.stack else ""
            evidence = f" ({e.evidence})" if e.evidence else ""
            return line(
                SEEN, "the controller's hang watch", f"rank {e.rank} seems to hang: {e.reason}{evidence}{stack}"
            )
        case events.WorkerEnded(fenced=True) as e:
            return line(DONE, _agent(record, e.worker), f"process {e.worker} was ended")
        case events.WorkerEnded() as e:
            how = how_ended(e.signal, e.exit_code)
            whose = f", which held rank {e.rank}," if e.rank >= 0 else ""
            return line(SEEN, _agent(record, e.worker), f"process {e.worker}{whose} {how}")
        case events.NodeLost() as e:
            return line(SEEN, "the controller", f"machine {e.node} is lost: {e.reason}")
        case events.HealthVerdict() as e:
            return line(SEEN, _health_watch(e), verdict(e))
        case events.Decision() as e if e.text.startswith("generation ") and e.text.endswith(m.reason):
            return []  # said already: the migration began for this
        case events.Decision() as e:
            return line(DECIDED, "the controller", e.text)
        case events.MigrationStarted() as e:
            more = f"rank {e.rank} is lost too" if e.rank >= 0 else "all ranks are concerned"
            return line(DECIDED, "the controller", f"it turns into an {e.kind} one, {more}: {e.reason}")
        case events.PhaseChanged() as e if e.phase not in ("over", "detect"):
            return line(DONE, "the controller", _says(m.kind, e.phase), 0.0)
        case events.MoveNotMade() as e:
            return line(DONE, "the controller", f"the move that was asked for ({e.asked}) was not made: {e.reason}")
        case events.IncidentKept() as e:
            where = f"; what is needed to find the cause is in {e.directory}" if e.directory else ""
            return line(SEEN, "the controller", f"this had been promised ({e.promised}), so it is an incident{where}")
    return []


def _agent(record: RunRecord, worker: str) -> str:
    node = record.node_of(worker)
    return f"the agent on {node}" if node else "the agent"


def _health_watch(e: events.HealthVerdict) -> str:
    return f"the health watch on {e.node}" if e.node else "the health watch"


_ACTIONS = {
    "watch": "watch it",
    "migrate": "move the rank while it still runs",
    "replace": "replace the rank now",
    "stop": "end the job",
}


def verdict(e: events.HealthVerdict) -> str:
    """Say what was seen of a device or a number, which rule applies, and what was done about it."""
    what = _ACTIONS.get(e.action, e.action)
    rule = f"row “{e.rule}” of the fault policy says: {what}"
    if e.outcome == OBSERVED:
        return f"{e.reason}. The {rule}. Not done: this is only observed"
    if e.outcome == REFUSED:
        return f"{e.reason}. The {rule}"
    aside = f"; no rank is given to {e.node if e.quarantine == 'node' else e.subject} any more"
    return f"{e.reason}. The {rule}{aside if e.quarantine in ('node', 'device') else ''}"


def _costs(record: RunRecord, m: MigrationRecord) -> tuple[str, ...]:
    if m.finished is None:
        return ()
    f = m.finished
    made = [f"Training stood still for {words.duration(m.downtime_s)}."]
    longest = max(f.downtime_s.items(), key=lambda row: row[1], default=("", 0.0))
    if longest[1] > 0.0 and m.downtime_s > 0.0:
        share = longest[1] / m.downtime_s
        made.append(
            f"Most of it was {ROW_NAMES.get(longest[0], longest[0])}: {words.duration(longest[1])} ({share:.0%})."
        )
    if record.world_size:
        lost = words.duration(m.downtime_s * record.world_size)
        made.append(f"Over {words.count(record.world_size, 'rank')} that is {lost} of process time.")
    made.append(words.sentence(_redone(m)))
    if f.beside_s > 0.0:
        made.append(f"Preparing took {words.duration(f.beside_s)} more, while training went on.")
    if f.transferred_bytes:
        made.append(f"{words.size(f.transferred_bytes)} of tensors were handed over.")
    if f.spares and m.outcome == COMMITTED:
        made.append(f"It took {words.count(len(f.spares), 'spare')}: {words.listed(f.spares)}.")
    return tuple(made)


def _to_do(record: RunRecord, m: MigrationRecord) -> tuple[str, ...]:
    made = []
    about = {subject for h in (*m.seen, *m.heard) for subject in _put_aside(h)}
    for subject in sorted(about & record.quarantine.keys()):
        made.append(f"Look at {record.shown(subject)}, which is in quarantine. Clear it when it is well.")
    for incident in record.incidents:
        if incident.migration == m.name and incident.directory:
            made.append(f"Report this incident: {incident.directory} has what is needed to find the cause.")
    if m.outcome == CHECKPOINT and record.checkpoint is not None and record.checkpoint.resume_command:
        made.append(f"Go on from the checkpoint: {record.checkpoint.resume_command}")
    return tuple(made)


def _put_aside(heard: Heard) -> tuple[str, ...]:
    e = heard.what
    if not isinstance(e, events.HealthVerdict):
        return ()
    return {"node": (e.node,), "device": (e.subject,)}.get(e.quarantine, ())
