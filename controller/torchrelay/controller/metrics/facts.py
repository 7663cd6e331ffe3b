"""Reads off a job's core what `collect` needs."""

from __future__ import annotations

from collections import Counter

from torchrelay.controller.core import Core
from torchrelay.controller.metrics.collect import JobFacts, rank_protection
from torchrelay.controller.status import spare_status
from torchrelay.protocol.health.kinds import DEVICE, NODE
from torchrelay.protocol.metrics.table import (
    BARRIER,
    COPY,
    GATE,
    HEAD,
    MISSING,
    NOTHING,
    QUARANTINED,
    READY,
    STARTING,
)
from torchrelay.protocol.words.causes import ProtectionCause
from torchrelay.protocol.words.level import Level


def job_facts(core: Core, restarts: int, now_s: float) -> JobFacts:
    """`restarts`: how often the job began again; `now_s`: the clock of the core's calls.

    Costs in proportion to the number of ranks.
    """
    summary = core.summary(now_s)
    job = core.job
    wanted = max(core.pool.wanted, job.spares_wanted)
    states = Counter(spare_status(job, w, now_s).state for w in job.spares)
    ready = states[READY]
    starting = states[STARTING] + job.spares_coming
    nodes = sum(subject in job.nodes for subject in job.quarantine)
    common = {
        "boundary": summary.boundary,
        "ranks": summary.states,
        "spares": {
            READY: ready,
            STARTING: starting,
            QUARANTINED: states[QUARANTINED],
            MISSING: max(wanted - ready - starting, 0),
        },
        "spares_wanted": wanted,
        "quarantined": {NODE: nodes, DEVICE: len(job.quarantine) - nodes},
        "restarts": restarts,
    }
    if (found := core.coverage(now_s)) is None:
        fault = {"level": Level.UNPROTECTED.value, "cause": ProtectionCause.FAULT.value}
        nobody = {"protection": {NOTHING: job.world_size}, "step_s": 0.0, "costs": {}, "cost_share": 0.0}
        return JobFacts(**fault, **nobody, **common)  # type: ignore[arg-type]
    return JobFacts(
        level=found.level,
        cause=found.cause,
        protection=rank_protection(found.level, found.gaps, job.world_size),
        step_s=found.step_s,
        costs={HEAD: found.head_s, GATE: found.gate_s, BARRIER: found.barrier_s, COPY: found.copy_s},
        cost_share=found.share,
        **common,  # type: ignore[arg-type]
    )
