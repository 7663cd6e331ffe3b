"""Reads off a job's core what `collect` needs."""

from __future__ import annotations

from torchrelay.controller.core import Core
from torchrelay.controller.metrics.collect import JobFacts
from torchrelay.protocol.metrics.table import DEVICE, MISSING, NODE, QUARANTINED, READY, STARTING


def job_facts(core: Core, now_s: float) -> JobFacts:
    """`now_s`: the clock of the core's calls. Costs in proportion to the number of ranks."""
    summary, job = core.summary(now_s), core.job
    wanted = max(core.pool.wanted, job.spares_wanted)
    ready = sum(w.warm and not job.quarantined(w) for w in job.spares)
    barred = sum(bool(job.quarantined(w)) for w in job.spares)
    starting = len(job.spares) - ready - barred + core.pool.making + job.spares_coming
    spares = {READY: ready, STARTING: starting, QUARANTINED: barred, MISSING: max(wanted - ready - starting, 0)}
    nodes = sum(subject in job.nodes for subject in job.quarantine)
    quarantined = {NODE: nodes, DEVICE: len(job.quarantine) - nodes}
    return JobFacts(summary.level, summary.boundary, summary.states, spares, wanted, quarantined)
