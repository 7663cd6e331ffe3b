"""What `torchrelay status` shows."""

from __future__ import annotations

from torchrelay.controller.driver import Driver
from torchrelay.controller.job import Job, Worker
from torchrelay.controller.spare_pool import SparePool
from torchrelay.protocol.level import Level
from torchrelay.protocol.messages import Coverage, JobStatus, RankStatus, Report
from torchrelay.protocol.phases import PLANNED, Phase


def job_status(
    run_id: str,
    job: Job,
    driver: Driver,
    pool: SparePool,
    coverage: Coverage,
    now_s: float,
    health: tuple[str, ...] = (),
) -> JobStatus:
    return JobStatus(
        run_id,
        job.world_size,
        job.generation,
        sum(w.warm for w in job.spares),
        len(job.spares),
        coverage.level,
        coverage.reason,
        job.clock.steps_per_s(now_s),
        driver.done,
        _last(driver),
        tuple(_rank(job, driver, rank) for rank in sorted(job.holders)),
        tuple(_report(w.rank, w.report) for w in job.rank_workers if w.report is not None),
        (coverage,),
        tuple(f"{subject}: {reason}" for subject, reason in job.quarantine.items()),
        health,
        pool.wanted,
        pool.making,
        pool.reason,
    )


def aside_status(run_id: str, job: Job, reason: str) -> JobStatus:
    """Of a job in which something of ours has failed: no more than who was where."""
    ranks = tuple(
        RankStatus(rank, w.worker, w.node, w.pid, w.seen_boundary, "", "running" if w.alive else "lost")
        for rank, w in _holders(job)
    )
    return JobStatus(run_id, job.world_size, job.generation, 0, 0, Level.UNPROTECTED.value, reason, 0.0, 0, "", ranks)


def _holders(job: Job) -> list[tuple[int, Worker]]:
    return [(rank, job.workers[worker]) for rank, worker in sorted(job.holders.items()) if worker in job.workers]


def _last(driver: Driver) -> str:
    if driver.migration is None:
        return driver.last
    s = driver.migration.state
    return f"{s.migration} ({s.kind}, rank {s.rank}): {s.phase.value}: {s.reason}"


def _rank(job: Job, driver: Driver, rank: int) -> RankStatus:
    worker = job.holder(rank)
    progress = worker.progress
    phase = progress.phase if progress else "set-up"
    return RankStatus(
        rank, worker.worker, worker.node, worker.pid, worker.seen_boundary, phase, _state(job, driver, rank)
    )


def _state(job: Job, driver: Driver, rank: int) -> str:
    worker = job.holder(rank)
    if worker.finishing:
        return "finished"
    migration = driver.migration
    if not worker.alive or (migration is not None and migration.state.kind != PLANNED and rank in migration.state.lost):
        return "lost"
    if worker.seen_boundary < 0:
        return "starting"
    if driver.phase not in (Phase.HEALTHY, Phase.SUSPECTED, Phase.COMMITTED) and (
        driver.kind != PLANNED or driver.phase is not Phase.PREPARING
    ):
        return "standing"
    return "running"


def _report(rank: int, report: Report) -> str:
    text = (
        f"rank {rank}: training loop at {report.file}:{report.line}, {report.tensors} tensors of "
        f"{report.device_state_bytes} bytes, journal of {report.journal_bytes} bytes"
    )
    if report.unprotected:
        text += f"; not protected: {', '.join(report.unprotected)}"
    return text + "".join(f"; {note}" for note in report.notes)
