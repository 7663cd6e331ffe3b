"""What the person on call has to know first: one sentence, and what is left to do. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from torchrelay.dashboard import story, to_paste, words
from torchrelay.dashboard.record import REFUSED, RunRecord
from torchrelay.protocol import events
from torchrelay.protocol.words.level import Level
from torchrelay.protocol.words.phases import UNFORCED

ASIDE_NAMED = 3
"""Of what is in quarantine."""
WELL = "well"
WORKING = "working"
NOTICE = "notice"
ACT = "act"
OVER = "over"


@dataclass(frozen=True)
class Headline:
    """The sentence. `tone`: well, working (it is being taken care of), notice, act (a person is needed) or over."""

    tone: str
    text: str
    detail: str = ""


@dataclass(frozen=True)
class ToDo:
    """Something that is left for a person. `command` works when pasted; empty where there is none."""

    text: str
    command: str = ""


def headline(record: RunRecord, now_s: float, unreachable: str = "") -> Headline:
    """Return the sentence at the top of a run's page. `unreachable`: why nothing is heard of the job."""
    if record.ended is not None:
        return _over(record)
    if unreachable:
        return Headline(NOTICE, "No news of this job", words.sentence(unreachable))
    if record.fell is not None:
        return _falls(record)
    if record.under_way is not None:
        return _moving(record, now_s)
    if record.first_step_s is None:
        if not record.world_size:
            return Headline(WORKING, "Starting", "Waiting until all machines are there.")
        return Headline(WORKING, "Setting up", "No step is done yet. Protection begins with the first steps.")
    return _training(record)


def _over(record: RunRecord) -> Headline:
    assert record.ended is not None
    end = record.ended.what
    assert isinstance(end, events.JobFinished)
    took = words.duration(record.ended.time_s - record.started_s)
    steps = f"{words.count(record.boundary, 'step')} in {took}" if record.boundary > 0 else f"after {took}"
    if end.exit_code == 0:
        return Headline(OVER, "Finished", f"{words.sentence(steps)} {_past(record)}")
    why = words.sentence(f"{end.reason} (asked for by {end.by})" if end.by else end.reason)
    tone = OVER if end.by else ACT  # whoever asked for it needs nobody to look at it
    return Headline(tone, f"Ended with exit code {end.exit_code}", f"{why} It had run {steps}.")


def _past(record: RunRecord) -> str:
    done = record.totals.by_outcome.get("committed", 0)
    if not done:
        return "Nothing had to be moved."
    stood = words.duration(record.totals.standstill_s)
    return f"{words.count(done, 'migration')}; training stood still for {stood} in all."


def _falls(record: RunRecord) -> Headline:
    assert record.fell is not None
    fell = record.fell.what
    assert isinstance(fell, events.JobFell)
    newest = record.restarts[-1].event if record.restarts else None
    if newest is None or record.restarts[-1].time_s < record.fell.time_s:
        return Headline(WORKING, "The job cannot go on in its processes", words.sentence(fell.reason))
    whence = f"from the checkpoint of step {newest.boundary:,}" if newest.directory else "from the script's beginning"
    lost = f" {words.count(newest.steps, 'step')} are done again." if newest.steps else ""
    return Headline(WORKING, f"All processes start anew, {whence}", f"{words.sentence(newest.reason)}{lost}")


def _moving(record: RunRecord, now_s: float) -> Headline:
    running = record.under_way
    assert running is not None
    rest = "Nothing is to be done." if running.kind in UNFORCED else "torchrelay takes care of it."
    return Headline(WORKING, story.title(running), f"{story.summary(running, now_s)} {rest}")


def _training(record: RunRecord) -> Headline:
    alive = words.count(record.ranks_alive, "rank")
    train = "trains" if record.ranks_alive == 1 else "train"
    now = f"{alive} {train}, {words.count(max(record.boundary, 0), 'step')} done."
    why = words.sentence(record.level_reason)
    if record.level is Level.UNPROTECTED:
        return Headline(NOTICE, "Training runs, but is not protected", f"{why} {now}")
    if record.level is Level.PARTLY:
        return Headline(NOTICE, "Training runs, partly protected", f"{why} {now}")
    if record.level is Level.PROTECTED:
        spares = f"{words.count(record.pool.ready, 'spare')} ready." if record.pool is not None else ""
        left = len(to_do(record))
        all_well = "All is well" if not left else f"Training is well; {words.count(left, 'thing')} left for you to do"
        return Headline(WELL, all_well, f"{now} {why} {spares}".strip())
    return Headline(WORKING, "Training runs; protection is on its way", f"{why} {now}")


def to_do(record: RunRecord) -> tuple[ToDo, ...]:
    """Return what is left for a person to do, the most urgent first."""
    made = []
    ended = record.ended.what if record.ended is not None else None
    if isinstance(ended, events.JobFinished) and ended.exit_code != 0 and record.checkpoint is not None:
        saved = record.checkpoint
        text = f"Go on from the checkpoint of step {saved.boundary:,} in {saved.directory}."
        made.append(ToDo(text, saved.resume_command))
    for incident in record.incidents:
        where = f" What is needed to find the cause is in {incident.directory}." if incident.directory else ""
        made.append(ToDo(f"A promise was not kept in migration {incident.migration}: {incident.reason}.{where}"))
    if record.ended is not None:
        return tuple(made)
    if record.level is Level.UNPROTECTED:
        made.append(ToDo(f"A failure would end this job: {record.level_reason}.", to_paste.status(record)))
    if record.pool is not None and record.pool.reason:
        few = f"{record.pool.ready} of {words.count(record.pool.wanted, 'spare')} ready"
        made.append(ToDo(f"Spares are short ({few}): {record.pool.reason}."))
    aside = list(record.quarantine.values())
    for kept in aside[:ASIDE_NAMED]:
        command = to_paste.clear(record, kept.subject)
        rest = "Clear it when it is well." if command else "This job uses it no more."
        subject = record.shown(kept.subject)
        node = record.shown(kept.node)
        made.append(ToDo(f"Look at {subject}{_where(node, subject)}. {rest}", command))
    if len(aside) > ASIDE_NAMED:
        made.append(ToDo(f"{len(aside) - ASIDE_NAMED} more are in quarantine, and listed below."))
    for heard in list(record.verdicts)[-3:]:
        e = heard.what
        if isinstance(e, events.HealthVerdict) and e.outcome == REFUSED:
            made.append(ToDo(f"torchrelay would not act by itself: {e.reason}."))
    for move in list(record.not_made)[-3:]:
        made.append(ToDo(f"Rank {move.rank} did not move, as was asked for: {move.reason}."))
    return tuple(made)


def _where(node: str, subject: str) -> str:
    return f" on {node}" if node and node != subject else ""
