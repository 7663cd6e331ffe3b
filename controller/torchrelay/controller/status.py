"""The status of a job, as `torchrelay status` shows it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import islice

from torchrelay.controller.execution.driver import Driver
from torchrelay.controller.picture.job import Job
from torchrelay.controller.picture.worker import Worker
from torchrelay.controller.spares.pool import SparePool
from torchrelay.protocol.messages import Coverage, JobStatus, RankStatus, Report, SpareStatus
from torchrelay.protocol.metrics.table import QUARANTINED, READY, STARTING
from torchrelay.protocol.names import NO_RANK
from torchrelay.protocol.words.level import Level
from torchrelay.protocol.words.phases import PLANNED, SAVE, Phase
from torchrelay.protocol.words.positions import RANK_STATES, RankPhase

RANKS_NAMED = 64


@dataclass(frozen=True)
class RankState:
    rank: int
    worker: str
    state: str


@dataclass(frozen=True)
class JobSummary:
    """A short status. `boundary`: what every rank has reached. `states`: how many ranks are in each.

    `named`: all ranks of a small job; of a large one those that are not in the state that most are in, RANKS_NAMED at most.
    `step_s`: the median duration of the latest steps; 0 before there are any.
    """

    world_size: int
    generation: int
    boundary: int
    spares_warm: int
    spares_total: int
    level: str
    reason: str
    migrations_done: int
    last_migration: str
    step_s: float
    states: dict[str, int]
    named: tuple[RankState, ...]


def job_status(
    run_id: str,
    job: Job,
    driver: Driver,
    pool: SparePool,
    coverage: Coverage,
    now_s: float,
    health: tuple[str, ...] = (),
) -> JobStatus:
    stands = _stands(driver)
    return JobStatus(
        run_id,
        job.world_size,
        job.generation,
        sum(w.warm for w in job.spares),
        len(job.spares),
        coverage.level,
        coverage.reason,
        job.clock.steps_per_s(now_s),
        driver.outcomes.done,
        _last(driver),
        tuple(_rank(job, driver, rank, stands) for rank in sorted(job.holders)),
        tuple(_report(w.rank, w.report) for w in job.rank_workers if w.report is not None),
        (coverage,),
        tuple(f"{subject}: {reason}" for subject, reason in job.quarantine.items()),
        health,
        pool.wanted,
        pool.making,
        pool.reason,
        spares=tuple(spare_status(job, w, now_s) for w in job.spares),
        moving=() if driver.bytes_told.now is None else (driver.bytes_told.now,),
    )


def spare_status(job: Job, spare: Worker, now_s: float) -> SpareStatus:
    state = READY if spare.warm else STARTING
    reason = ""
    if barred := job.quarantined(spare):
        state = QUARANTINED
        reason = barred
    elif spare.stopped_since_s is not None:
        reason = f"stopped for {now_s - spare.stopped_since_s:.0f} s: it does not take over until it goes on"
    elif spare.started_for != NO_RANK:
        reason = f"kept for rank {spare.started_for}"
    return SpareStatus(spare.worker, spare.node, spare.pid, state, now_s - spare.came_s, reason)


def job_summary(job: Job, driver: Driver, level: str, reason: str) -> JobSummary:
    """Return what a TrainingJob says: in a large job no more than the exceptional ranks by name."""
    stands = _stands(driver)
    states = {rank: _state(job, driver, rank, stands) for rank in sorted(job.holders)}
    return JobSummary(
        job.world_size,
        job.generation,
        job.boundary,
        sum(w.warm for w in job.spares),
        len(job.spares),
        level,
        reason,
        driver.outcomes.done,
        _last(driver),
        job.clock.median_step_s,
        *_named(job, states),
    )


def aside_summary(job: Job, reason: str) -> JobSummary:
    """Return the summary of a job in which torchrelay has failed."""
    states = {rank: "running" if w.alive else "lost" for rank, w in _holders(job)}
    furthest = min((w.seen_boundary for _, w in _holders(job)), default=-1)
    level = Level.UNPROTECTED.value
    return JobSummary(job.world_size, job.generation, furthest, 0, 0, level, reason, 0, "", 0.0, *_named(job, states))


def _named(job: Job, states: dict[int, str]) -> tuple[dict[str, int], tuple[RankState, ...]]:
    counts = Counter(states.values())
    ranks: Iterable[int] = states
    if len(states) > RANKS_NAMED:
        usual, _ = counts.most_common(1)[0]
        ranks = islice((rank for rank, state in states.items() if state != usual), RANKS_NAMED)
    named = tuple(RankState(rank, job.holders[rank], states[rank]) for rank in ranks)
    return {state: counts[state] for state in RANK_STATES}, named


def aside_status(run_id: str, job: Job, reason: str) -> JobStatus:
    """Return the status of a job in which torchrelay has failed: no more than which rank was where."""
    ranks = tuple(
        RankStatus(rank, w.worker, w.node, w.pid, w.seen_boundary, "", "running" if w.alive else "lost")
        for rank, w in _holders(job)
    )
    return JobStatus(run_id, job.world_size, job.generation, 0, 0, Level.UNPROTECTED.value, reason, 0.0, 0, "", ranks)


def _holders(job: Job) -> list[tuple[int, Worker]]:
    return [(rank, job.workers[worker]) for rank, worker in sorted(job.holders.items()) if worker in job.workers]


def _last(driver: Driver) -> str:
    if driver.migration is None:
        return driver.outcomes.last
    s = driver.migration.state
    who = s.kind if s.kind == SAVE else f"{s.kind}, rank {s.rank}"
    return f"{s.migration} ({who}): {s.phase.value}: {s.reason}"


def _rank(job: Job, driver: Driver, rank: int, stands: bool) -> RankStatus:
    worker = job.holder(rank)
    progress = worker.progress
    phase = progress.phase if progress else RankPhase.SET_UP.value
    return RankStatus(
        rank, worker.worker, worker.node, worker.pid, worker.seen_boundary, phase, _state(job, driver, rank, stands)
    )


def _stands(driver: Driver) -> bool:
    """Return whether ranks that live wait for a migration."""
    if driver.phase in (Phase.HEALTHY, Phase.SUSPECTED, Phase.COMMITTED):
        return False
    return driver.kind != PLANNED or driver.phase is not Phase.PREPARING


def _state(job: Job, driver: Driver, rank: int, stands: bool) -> str:
    worker = job.holder(rank)
    if worker.finishing:
        return "finished"
    migration = driver.migration
    if not worker.alive or (migration is not None and migration.state.kind != PLANNED and rank in migration.state.lost):
        return "lost"
    if worker.seen_boundary < 0:
        return "starting"
    return "standing" if stands else "running"


def _report(rank: int, report: Report) -> str:
    text = (
        f"rank {rank}: training loop at {report.file}:{report.line}, {report.tensors} tensors of "
        f"{report.device_state_bytes} bytes, journal of {report.journal_bytes} bytes"
    )
    if report.unprotected:
        text += f"; not protected: {', '.join(report.unprotected)}"
    return text + "".join(f"; {note}" for note in report.notes)
