"""`kubectl torchrelay report`: what protection cost a job and what it saved, as far as its resources say. No I/O."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from torchrelay.cli.cluster.times import goodput, time_s, wall_time_s
from torchrelay.cli.cluster.view import Object, status_of
from torchrelay.cli.history.cost import HOUR_S, Assumed, CostReport, FaultCost, restarts_cost
from torchrelay.protocol.kube import kube_names as kube
from torchrelay.protocol.kube.holders import unpack_holders
from torchrelay.protocol.words.level import Level
from torchrelay.protocol.words.phases import COMMITTED, PLANNED, SAVE, SAVED

ALL_ANEW = (kube.JIT_CHECKPOINT, kube.CHECKPOINT)
"""Rungs on which all processes start anew."""


def report_of(
    job: Object, migrations: Sequence[Object], pool: Object | None, now_s: float, assumed: Assumed
) -> CostReport:
    """Return the report of a TrainingJob until `now_s`, by the wall clock, or until its end. `migrations`: its own.

    What no controller has watched counts as neither useful nor done again. An older controller says nothing of both.
    """
    s = status_of(job)
    wall_s = wall_time_s(job, now_s)
    moves = [m for m in migrations if status_of(m).get("kind") not in (None, SAVE) and status_of(m).get("outcome")]
    moves.sort(key=lambda m: str(status_of(m).get("startedAt", "")))
    done = [status_of(m) for m in moves if status_of(m)["outcome"] == COMMITTED]
    saved = [status_of(m) for m in migrations if status_of(m).get("outcome") == SAVED]
    saved_s = [time_s(s.get("finishedAt", "")) for s in saved]
    restarts_s, counted = restarts_cost([time_s(d.get("startedAt", "")) for d in done], saved_s, assumed)
    anew = [loss for loss in s.get("losses") or () if loss.get("rung") in ALL_ANEW]
    ranks = int(s.get("worldSize", 0))
    standstill_s = sum(float(status_of(m).get("downtimeSeconds", 0.0)) for m in moves)
    redone_s = s.get("redoneSeconds")
    lost_s = standstill_s + sum(float(loss.get("seconds", 0.0)) for loss in anew) + float(redone_s or 0.0)
    survived = sum(d.get("kind") != PLANNED for d in done)
    spares = int(pool["spec"].get("spares", 0)) * _processes_of_a_pod(s) if pool is not None else 0
    open_gaps = s.get("protection") in (Level.UNPROTECTED.value, Level.PARTLY.value)
    return CostReport(
        f"{job['metadata'].get('namespace', '')}/{job['metadata']['name']}",
        ranks,
        wall_s,
        int(s.get("step", 0)),
        goodput(job, now_s),
        (*map(_move, moves), *map(_anew, anew)),
        survived,
        len(done) - survived,
        standstill_s,
        None if redone_s is None else float(redone_s),
        spares * wall_s / HOUR_S,
        ranks * lost_s / HOUR_S,
        ranks * restarts_s / HOUR_S,
        counted,
        assumed,
        (str(s.get("protectionReason", "")),) if open_gaps else (),
    )


def _move(migration: Object) -> FaultCost:
    s = status_of(migration)
    why = s.get("reason") or migration["spec"].get("reason", "")
    seconds = float(s.get("downtimeSeconds", 0.0))
    redone = int(s.get("stepsRedone", 0))
    return FaultCost(migration["metadata"]["name"], s.get("kind", ""), why, s["outcome"], seconds, redone)


def _anew(loss: Object) -> FaultCost:
    what = str(loss.get("rung", ""))
    why = str(loss.get("reason", ""))
    seconds = float(loss.get("seconds", 0.0))
    redone = int(loss.get("stepsRedone", 0))
    return FaultCost(f"restart at step {loss['step']}", what, why, "all started anew", seconds, redone)


def _processes_of_a_pod(status: Object) -> int:
    """Return how many processes a pod has; 1 if nothing is known."""
    if packed := status.get("holders"):
        pods = [worker.rpartition(".")[0] for _, worker, _ in unpack_holders(packed)]
    else:
        pods = [str(r.get("pod", "")) for r in status.get("ranks") or ()]
    return max(Counter(pods).values(), default=1)
