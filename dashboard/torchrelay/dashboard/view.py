"""What the page shows of a run, as plain values for JSON: made of a `RunRecord`, and of the status of a live job. Pure."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from torchrelay.dashboard import story, to_paste, words
from torchrelay.dashboard.headline import headline, to_do
from torchrelay.dashboard.record import OBSERVED, RunRecord
from torchrelay.dashboard.run_facts import MigrationRecord
from torchrelay.protocol import events
from torchrelay.protocol.messages import JobStatus, RankStatus
from torchrelay.protocol.metrics.account import UsefulTime
from torchrelay.protocol.words.phases import PLANNED, RESUME

SECTIONS = ("job", "ranks", "chart", "migrations", "devices", "verdicts", "report")
MIGRATIONS_SHOWN = 200
VERDICTS_SHOWN = 50
BARRED_SHOWN = 200
"""Of the Quarantines of a cluster."""
TOLD_RANKS = 200
"""Of so many ranks that are not like the others the page has the reason in words."""
LETTERS = {
    "running": "r",
    "standing": "s",
    "lost": "l",
    "starting": "i",
    "moving": "m",
    "finished": "f",
    "unknown": "u",
}
"""A rank's state as the page has it (rank_map.js)."""


@dataclass(frozen=True)
class Seen:
    """A run at one moment. `status`: of a live job, at most some seconds old. `unreachable`: why nothing is heard of it.

    `note`: what else a reader of the page has to know.
    """

    record: RunRecord
    now_s: float
    command: str = ""
    status: JobStatus | None = None
    unreachable: str = ""
    actions: bool = False
    """Somebody could ask this job for something."""
    note: str = ""
    when: str = ""
    """Its name, when it began and where, in words, as far as that is known and stands nowhere else."""
    is_over: bool = False
    """Nothing more will be heard of it, whether or not its end was told."""

    @property
    def title(self) -> str:
        """Return what people call the run; empty if that is its id."""
        return f"job {self.record.job}" if self.record.job is not None else ""


def card(seen: Seen) -> dict[str, Any]:
    """Return the run's entry in the list of runs."""
    r = seen.record
    head = headline(r, seen.now_s, seen.unreachable)
    spent = r.useful_time(seen.now_s)
    return {
        "run": r.run_id,
        "job": str(r.job or ""),
        "title": seen.title,
        "command": seen.command,
        "tone": head.tone,
        "headline": head.text,
        "ranks": r.world_size,
        "steps": max(r.boundary, 0),
        "steps_per_s": _rate(r),
        "goodput": words.percent(spent.share) if r.first_step_s is not None else "-",
        "protection": r.level.words,
        "level": r.level.value,
        "to_do": len(to_do(r)),
        "when": seen.when,
        "over": seen.is_over or r.ended is not None,
    }


def sections(seen: Seen) -> dict[str, Any]:
    """Return each part of a run's page by its name, so that only what has changed is sent."""
    return {
        "job": _job(seen),
        "ranks": _ranks(seen),
        "chart": _chart(seen),
        "migrations": [_row(m, seen.now_s) for m in _newest(seen.record)],
        "devices": _devices(seen),
        "verdicts": _verdicts(seen.record),
        "report": _report(seen.record),
    }


def migration(seen: Seen, key: str) -> dict[str, Any] | None:
    """Return the page of one migration; None if none has that key, or if it is no longer kept."""
    found = seen.record.migrations.get(key)
    return dataclasses.asdict(story.tell(seen.record, found, seen.now_s)) if found is not None else None


def _newest(record: RunRecord) -> list[MigrationRecord]:
    return list(reversed(record.migrations.values()))[:MIGRATIONS_SHOWN]


def _rate(record: RunRecord) -> float:
    return 0.0 if record.ended is not None or record.under_way is not None else record.steps_per_s


def _job(seen: Seen) -> dict[str, Any]:
    r = seen.record
    spent = r.useful_time(seen.now_s)
    head = headline(r, seen.now_s, seen.unreachable)
    committed = r.totals.by_outcome.get("committed", 0)
    return {
        "run": r.run_id,
        "title": seen.title,
        "note": seen.note,
        "when": seen.when,
        "command": seen.command,
        "headline": dataclasses.asdict(head),
        "to_do": [dataclasses.asdict(t) for t in to_do(r)],
        "over": seen.is_over or r.ended is not None,
        "actions": seen.actions and r.ended is None,
        "level": r.level.value,
        "protection": r.level.words,
        "protection_reason": words.sentence(r.level_reason),
        "steps": max(r.boundary, 0),
        "steps_per_s": round(_rate(r), 2),
        "began": words.duration(spent.wall_s) if spent.wall_s else "",
        "goodput": {
            "known": r.first_step_s is not None,
            "share": words.percent(spent.share),
            "since_first_step": words.percent(spent.share_since_first_step),
            "parts": _parts(spent),
        },
        "migrations": committed,
        "under_way": r.under_way is not None,
        "progress": _how_far(r),
        "not_done": sum(n for o, n in r.totals.by_outcome.items() if o in ("abandoned", "checkpoint")),
        "standstill": words.duration(r.totals.standstill_s),
        "restarts": [
            {
                "text": words.sentence(f"all processes were started anew ({x.event.rung}): {x.event.reason}"),
                "took": words.duration(x.down_s) if x.down_s is not None else "",
            }
            for x in r.restarts[-20:]
        ],
        "world_size": r.world_size,
        "alive": r.ranks_alive,
        "nodes": len(r.nodes),
    }


def _how_far(r: RunRecord) -> dict[str, Any] | None:
    """Return how much the migration under way has moved; None if that is not known."""
    p = r.under_way.progress if r.under_way is not None else None
    if p is None:
        return None
    return {"share": round(words.share_done(p), 4), "text": words.how_far(p), "what": story.ROW_NAMES[p.phase]}


def _parts(spent: UsefulTime) -> list[dict[str, Any]]:
    rows = (
        ("useful", "training", spent.useful_s),
        ("set_up", "set-up before the first step", spent.set_up_s),
        ("standstill", "standing still in migrations", spent.standstill_s),
        ("redone", "steps done again", spent.redone_s),
        ("restart", "restarts of all processes", spent.restart_s),
        ("open", "the step under way", spent.open_s),
    )
    return [
        {"part": part, "name": name, "seconds": round(s, 3), "words": words.duration(s)} for part, name, s in rows if s
    ]


def _ranks(seen: Seen) -> dict[str, Any]:
    r = seen.record
    live = {s.rank: s for s in seen.status.ranks} if seen.status is not None and r.ended is None else {}
    running = r.under_way
    letters: list[str] = []
    told: dict[int, str] = {}
    nodes: dict[str, list[int]] = {}
    counts: dict[str, int] = {}
    gpus = {worker: gpu for of_node in r.gpus.values() for worker, gpu in of_node.items()}
    for rank in range(r.world_size):
        status = live.get(rank)
        worker = status.worker if status is not None else r.holders.get(rank, "")
        node = status.node if status is not None else r.node_of(worker)
        nodes.setdefault(node or "not known", []).append(rank)
        state = _state(r, rank, status, running)
        counts[state] = counts.get(state, 0) + 1
        letters.append(LETTERS[state])
        if (state in ("lost", "moving", "unknown") or rank in r.moved) and len(told) < TOLD_RANKS:
            told[rank] = _why(r, rank, worker, state, running)
    return {
        "states": "".join(letters),
        "counts": counts,
        "nodes": [{"name": name, "ranks": _runs_of(ranks)} for name, ranks in nodes.items()],
        "workers": (workers := _workers(r, live, told)),
        "gpus": {rank: gpus[worker] for rank, worker in workers.items() if worker in gpus},
        "told": told,
        "moved": dict(list(r.moved.items())[-TOLD_RANKS:]),
    }


def _state(r: RunRecord, rank: int, status: RankStatus | None, running: MigrationRecord | None) -> str:
    if r.ended is not None:
        return "finished" if getattr(r.ended.what, "exit_code", 1) == 0 else "unknown"
    if rank in r.lost or (status is not None and status.state == "lost"):
        return "lost"
    if running is not None and rank in running.ranks:
        return "moving" if running.kind == PLANNED else "lost"
    if status is not None:
        return status.state if status.state in LETTERS else "unknown"
    if running is not None and running.stands_since_s is not None:
        return "standing"
    return "running" if r.first_step_s is not None else "starting"


def _why(r: RunRecord, rank: int, worker: str, state: str, running: MigrationRecord | None) -> str:
    if state == "lost":
        return words.sentence(r.lost.get(rank) or (running.reason if running is not None else "its process is gone"))
    if state == "moving" and running is not None:
        return words.sentence(f"it is being moved: {running.reason}")
    if state == "unknown":
        return "The job is over."
    moved = r.migrations.get(r.moved.get(rank, ""))
    return words.sentence(f"{worker} took it over: {moved.reason}") if moved is not None else ""


def _runs_of(ranks: list[int]) -> list[list[int]]:
    """Group ranks into ranges [first, last]: a job of 10,000 has long rows of them."""
    made: list[list[int]] = []
    for rank in ranks:
        if made and made[-1][1] == rank - 1:
            made[-1][1] = rank
        else:
            made.append([rank, rank])
    return made


def _workers(r: RunRecord, live: dict[int, RankStatus], told: Iterable[int]) -> dict[int, str]:
    """Return all workers of a small job; of a large job only those with news."""
    known = {rank: s.worker for rank, s in live.items()} or r.holders
    named: Iterable[int] = known if len(known) <= TOLD_RANKS else told
    return {rank: known[rank] for rank in named if rank in known}


def _chart(seen: Seen) -> dict[str, Any]:
    """Return the points of the chart, in seconds since the job started."""
    r = seen.record
    points = [[round(t - r.started_s, 2), step] for t, step in r.line.points]
    if points and r.under_way is not None:  # it stands still until now
        points.append([round(seen.now_s - r.started_s, 2), points[-1][1]])
    marks = []
    for m in _newest(r):
        if m.kind == RESUME or (m.stands_since_s is None and not m.downtime_s):
            continue
        end_s = m.ended_s if m.ended_s is not None else seen.now_s
        start_s = end_s - m.downtime_s if m.finished is not None else m.stands_since_s or m.started_s
        marks.append(
            {
                "key": m.key,
                "from": round(start_s - r.started_s, 3),
                "to": round(end_s - r.started_s, 3),
                "title": story.title(m),
                "tone": story.tone(m),
            }
        )
    return {
        "points": points,
        "marks": marks,
        "started_s": r.started_s,
        "restarts": [round(x.time_s - r.started_s, 2) for x in r.restarts],
    }


def _row(m: MigrationRecord, now_s: float) -> dict[str, Any]:
    return {
        "key": m.key,
        "title": story.title(m),
        "tone": story.tone(m),
        "outcome": m.outcome,
        "kind": m.kind,
        "started_s": m.started_s,
        "reason": words.sentence(m.reason),
        "standstill": words.duration(m.downtime_s) if m.finished is not None else "",
        "bar": [dataclasses.asdict(s) for s in story.bar(m, math.floor(now_s))],
    }


def _devices(seen: Seen) -> dict[str, Any]:
    r = seen.record
    pool = r.pool
    known = r.quarantine
    live = seen.status.quarantine if seen.status is not None else None
    kept = [_kept(r, dataclasses.asdict(q)) for q in known.values()]
    for subject, barred in list(r.barred.items())[:BARRED_SHOWN]:
        if subject not in {r.shown(q) for q in known}:
            kept.append(_kept(r, _aside(subject, barred.node, barred.reason)))
    if live is not None:  # a watcher that came late has not heard of all of them
        for text in live:
            subject, _, reason = text.partition(": ")
            if subject not in known:
                kept.append(_kept(r, _aside(subject, "", reason)))
    return {
        "spares": {
            "known": pool is not None,
            "wanted": pool.wanted if pool is not None else 0,
            "ready": pool.ready if pool is not None else r.spares_ready,
            "making": pool.making if pool is not None else 0,
            "reason": words.sentence(pool.reason) if pool is not None else "",
        },
        "quarantine": kept,
    }


def _aside(subject: str, node: str, reason: str) -> dict[str, Any]:
    return {"subject": subject, "node": node, "rule": "", "reason": reason, "since_s": 0.0, "ranks": ()}


def _kept(r: RunRecord, aside: dict[str, Any]) -> dict[str, Any]:
    subject = r.shown(aside["subject"])
    node = r.shown(aside["node"])
    return aside | {"subject": subject, "node": node, "command": to_paste.clear(r, subject)}


def _verdicts(r: RunRecord) -> list[dict[str, Any]]:
    """Return the verdicts, the newest first. `would`: the policy only observes."""
    made = []
    for heard in list(reversed(r.verdicts))[:VERDICTS_SHOWN]:
        e = heard.what
        assert isinstance(e, events.HealthVerdict)
        made.append(
            {
                "time_s": heard.time_s,
                "would": e.outcome == OBSERVED,
                "outcome": e.outcome,
                "action": e.action,
                "subject": e.subject or e.node,
                "ranks": words.ranks(e.ranks) if e.ranks else "",
                "text": words.sentence(story.verdict(e)),
            }
        )
    return made


def _report(r: RunRecord) -> dict[str, Any]:
    """Return the protection report of the job, as far as it is known."""
    c = r.coverage
    return {
        "loop": f"{c['file']}:{c['line']}" if c.get("file") else "",
        "against": list(c.get("against", ())),
        "gaps": [{**g, "ranks": words.ranks(g["ranks"]) if g.get("ranks") else ""} for g in c.get("gaps", ())],
        "rehearsed": list(c.get("rehearsed", ())),
        "notes": list(c.get("notes", ())),
    }
