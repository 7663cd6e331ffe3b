"""The one home of every metric: name, type, unit, labels and what it counts. docs/metrics.md is made from it."""

from __future__ import annotations

import enum
from dataclasses import dataclass, field

from torchrelay.protocol.level import Level
from torchrelay.protocol.names import GAP_EFFECTS
from torchrelay.protocol.phases import CLEARED, DOWNTIME_ROWS, KINDS, OUTCOMES

PREFIX = "torchrelay_"


class Kind(str, enum.Enum):
    """Of a metric, as Prometheus calls it."""

    GAUGE = "gauge"
    COUNTER = "counter"
    HISTOGRAM = "histogram"


class Part(str, enum.Enum):
    """Who serves a metric."""

    CONTROLLER = "controller"
    AGENT = "agent"
    BOTH = "both"


@dataclass(frozen=True)
class Label:
    """`values`: all that it can have; empty: `bound` says how many there can be."""

    name: str
    meaning: str
    values: tuple[str, ...] = ()
    bound: str = ""


@dataclass(frozen=True)
class Metric:
    """`unit`: seconds, bytes, ratio, or what is counted. `buckets`: upper bounds of a histogram, in the unit."""

    name: str
    kind: Kind
    unit: str
    part: Part
    help: str
    labels: tuple[Label, ...] = ()
    buckets: tuple[float, ...] = field(default=(), repr=False)

    @property
    def label_names(self) -> tuple[str, ...]:
        return tuple(label.name for label in self.labels)

    @property
    def series(self) -> tuple[str, ...]:
        """The names that a query can use."""
        if self.kind is Kind.HISTOGRAM:
            return tuple(f"{self.name}_{part}" for part in ("bucket", "sum", "count"))
        return (self.name,)


USEFUL, REDONE, STOPPED, SET_UP = "useful", "redone", "stopped", "set_up"
USES = {
    USEFUL: "between two boundaries that all ranks reached for the first time",
    REDONE: "in steps that were done again",
    STOPPED: "while a migration held training up, from the fault to the first step after it",
    SET_UP: "from the start of the job until all ranks came to their training loop",
}
"""What the time of a job was used for: each moment counts once."""

RANK_STATES = ("starting", "running", "standing", "lost", "finished")
READY, STARTING, MISSING, QUARANTINED = "ready", "starting", "missing", "quarantined"
SPARE_STATES = {
    READY: "can take over now",
    STARTING: "there, or being made, and not ready",
    MISSING: "wanted, and neither there nor being made",
    QUARANTINED: "there, on a device or node that is given no rank",
}
DEVICE, NODE = "device", "node"
RANK_PROTECTION = ("any-moment", *GAP_EFFECTS)
VERDICT_ACTIONS = ("ignore", "watch", "migrate", "replace", "stop")
VERDICT_OUTCOMES = ("done", "told", "observed", "refused")
HEAD, GATE, BARRIER, COPY = "head", "gate", "barrier", "copy"
COSTS = {
    HEAD: "capture at the loop's head",
    GATE: "capture before the optimizer step",
    BARRIER: "the shortest wait for other ranks in the gate",
    COPY: "one copy of the state in host memory",
}
REPORTED_OUTCOMES = tuple(outcome for outcome in OUTCOMES if outcome != CLEARED)
"""Of migrations: a suspicion that did not hold is none."""

JOB = (
    Label("job_namespace", "of the job; empty on machines", bound="namespaces with jobs"),
    Label("job_name", "of the job; on machines its run's id", bound="jobs that run, or ended not long ago"),
)
KIND = Label("kind", "of the migration", KINDS)
OUTCOME = Label("outcome", "how it ended", REPORTED_OUTCOMES)
PHASE = Label("phase", "for what training stood still", DOWNTIME_ROWS)

STOP_S = (0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0, 600.0)
LAG_S = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)

_GAUGE, _COUNTER, _HISTOGRAM = Kind.GAUGE, Kind.COUNTER, Kind.HISTOGRAM
_CONTROLLER, _BOTH = Part.CONTROLLER, Part.BOTH

JOB_PROTECTION = Metric(
    "torchrelay_job_protection_level",
    _GAUGE,
    "1 or 0",
    _CONTROLLER,
    "1 for the level that the job has now, 0 for all others.",
    (*JOB, Label("level", "see [glossary](glossary.md)", tuple(level.value for level in Level))),
)
JOB_RANKS = Metric(
    "torchrelay_job_ranks",
    _GAUGE,
    "ranks",
    _CONTROLLER,
    "Ranks of the job by what they do now.",
    (*JOB, Label("state", "of the rank", RANK_STATES)),
)
JOB_BOUNDARY = Metric(
    "torchrelay_job_boundary",
    _GAUGE,
    "steps",
    _CONTROLLER,
    "Optimizer steps that every rank has done since the script's beginning. It falls where ranks go back.",
    JOB,
)
JOB_STEPS = Metric(
    "torchrelay_job_steps_total",
    _COUNTER,
    "steps",
    _CONTROLLER,
    "Optimizer steps that every rank did for the first time under this controller.",
    JOB,
)
JOB_STEPS_REDONE = Metric(
    "torchrelay_job_steps_redone_total",
    _COUNTER,
    "steps",
    _CONTROLLER,
    "Optimizer steps that were done again after a migration.",
    JOB,
)
JOB_TIME = Metric(
    "torchrelay_job_time_seconds_total",
    _COUNTER,
    "seconds",
    _CONTROLLER,
    "What the job's time was used for. It counts on at each boundary: the step under way is not in it yet.",
    (*JOB, Label("use", "of the time", tuple(USES))),
)
JOB_GOODPUT = Metric(
    "torchrelay_job_goodput_ratio",
    _GAUGE,
    "ratio",
    _CONTROLLER,
    "Useful time by all time since the job started under this controller, the step under way as not useful.",
    JOB,
)
JOB_SPARES = Metric(
    "torchrelay_job_spares",
    _GAUGE,
    "spares",
    _CONTROLLER,
    "Spares of the job by state.",
    (*JOB, Label("state", "of the spare", tuple(SPARE_STATES))),
)
JOB_SPARES_WANTED = Metric(
    "torchrelay_job_spares_wanted", _GAUGE, "spares", _CONTROLLER, "Spares that the job is to have.", JOB
)
JOB_QUARANTINED = Metric(
    "torchrelay_job_quarantined",
    _GAUGE,
    "devices or nodes",
    _CONTROLLER,
    "Devices and nodes that are given no rank of the job.",
    (*JOB, Label("subject", "what is in quarantine", (DEVICE, NODE))),
)
JOB_MIGRATIONS = Metric(
    "torchrelay_job_migrations_total",
    _COUNTER,
    "migrations",
    _CONTROLLER,
    "Migrations of the job that are over, by how they ended.",
    (*JOB, OUTCOME),
)
MIGRATION_STOP = Metric(
    "torchrelay_migration_downtime_seconds",
    _HISTOGRAM,
    "seconds",
    _CONTROLLER,
    "How long a migration that is over held training up, from the fault to the first step after it.",
    (KIND,),
    STOP_S,
)
MIGRATION_PHASES = Metric(
    "torchrelay_migration_phase_seconds",
    _HISTOGRAM,
    "seconds",
    _CONTROLLER,
    "The same by phase; `detect` is the latency of detection. Phases that a migration did not have are left out.",
    (KIND, PHASE),
    STOP_S,
)
TRANSFERRED = Metric(
    "torchrelay_transferred_bytes_total",
    _COUNTER,
    "bytes",
    _CONTROLLER,
    "Bytes of tensors that joiners received. By the sum of the phase `transfer` it is the rate.",
)

METRICS: tuple[Metric, ...] = tuple(value for value in dict(globals()).values() if isinstance(value, Metric))
BY_NAME = {metric.name: metric for metric in METRICS}
