"""The one home of every metric: name, type, unit, labels and what it counts. docs/metrics.md is made from it."""

from __future__ import annotations

from torchrelay.protocol.health.kinds import ACTIONS, DEVICE, NODE, OUTCOMES_OF_VERDICTS
from torchrelay.protocol.metrics.metric import Metric, MetricLabel, MetricsOf, MetricType
from torchrelay.protocol.names import GAP_EFFECTS, REHEARSAL_OUTCOMES
from torchrelay.protocol.words.causes import MigrationCause, ProtectionCause
from torchrelay.protocol.words.level import Level
from torchrelay.protocol.words.phases import CLEARED, DOWNTIME_ROWS, KINDS, OUTCOMES
from torchrelay.protocol.words.positions import RANK_STATES

PREFIX = "torchrelay_"

USEFUL = "useful"
REDONE = "redone"
STOPPED = "stopped"
SET_UP = "set_up"
USES = {
    USEFUL: "between two boundaries that all ranks reached for the first time",
    REDONE: "in steps that were done again",
    STOPPED: "while a migration held training up, from the fault to the first step after it",
    SET_UP: "from the start of the job until all ranks came to their training loop",
}
"""What the time of a job was used for: each moment counts once."""

READY = "ready"
STARTING = "starting"
MISSING = "missing"
QUARANTINED = "quarantined"
SPARE_STATES = {
    READY: "can take over now",
    STARTING: "there, or being made, and not ready",
    MISSING: "wanted, and neither there nor being made",
    QUARANTINED: "there, on a device or node that is given no rank",
}
PENDING = "pending"
NOTHING = "nothing"
ANY_MOMENT = "any-moment"
RANK_PROTECTION = {
    PENDING: "not known yet",
    NOTHING: "the job is not protected",
    ANY_MOMENT: "the rank can be replaced at any moment of a step",
    **GAP_EFFECTS,
}
"""Of a rank: by its gap with the worst effect, or without one."""
READS = ("get", "list", "watch")
WRITES = ("create", "replace", "patch", "delete")
ANSWERED = "answered"
REFUSED = "refused"
AWAY = "away"
API_OUTCOMES = (ANSWERED, REFUSED, AWAY)
AUTHORITY = "authority"
OWN = "own"
JOURNALS = "journals"
CHECKPOINTS = "checkpoints"
HEAD = "head"
GATE = "gate"
BARRIER = "barrier"
COPY = "copy"
COSTS = {
    HEAD: "capture at the loop's head",
    GATE: "capture before the optimizer step",
    BARRIER: "the shortest wait for other ranks in the gate",
    COPY: "one copy of the state in host memory",
}
REPORTED_OUTCOMES = tuple(outcome for outcome in OUTCOMES if outcome != CLEARED)
"""Of migrations: a suspicion that did not hold is none."""

JOB = (
    MetricLabel("job_namespace", "of the job; empty on machines", bound="namespaces with jobs"),
    MetricLabel("job_name", "of the job; on machines its run's id", bound="jobs that run, or ended not long ago"),
)
KIND = MetricLabel("kind", "of the migration", KINDS)
OUTCOME = MetricLabel("outcome", "how it ended", REPORTED_OUTCOMES)
CERTIFICATE = MetricLabel(
    "certificate", "`authority`: that all others come from; `own`: what this process shows", (AUTHORITY, OWN)
)
PHASE = MetricLabel("phase", "for what training stood still", DOWNTIME_ROWS)

STOP_S = (0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0, 600.0)
LAG_S = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)

_GAUGE = MetricType.GAUGE
_COUNTER = MetricType.COUNTER
_HISTOGRAM = MetricType.HISTOGRAM
_CONTROLLER = MetricsOf.CONTROLLER
_AGENT = MetricsOf.AGENT
_BOTH = MetricsOf.BOTH

JOB_PROTECTION = Metric(
    "torchrelay_job_protection_level",
    _GAUGE,
    "1 or 0",
    _CONTROLLER,
    "1 for the level that the job has now, 0 for all others.",
    (*JOB, MetricLabel("level", "see [glossary](glossary.md)", tuple(level.value for level in Level))),
)
JOB_RANKS = Metric(
    "torchrelay_job_ranks",
    _GAUGE,
    "ranks",
    _CONTROLLER,
    "Ranks of the job by what they do now.",
    (*JOB, MetricLabel("state", "of the rank", RANK_STATES)),
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
    (*JOB, MetricLabel("use", "of the time", tuple(USES))),
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
    (*JOB, MetricLabel("state", "of the spare", tuple(SPARE_STATES))),
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
    (*JOB, MetricLabel("subject", "what is in quarantine", (DEVICE, NODE))),
)
JOB_MIGRATIONS = Metric(
    "torchrelay_job_migrations_total",
    _COUNTER,
    "migrations",
    _CONTROLLER,
    "Migrations of the job that are over, by how they ended.",
    (*JOB, OUTCOME),
)
JOB_PROTECTION_CAUSE = Metric(
    "torchrelay_job_protection_cause",
    _GAUGE,
    "1 or 0",
    _CONTROLLER,
    "1 for what the level hangs on now, 0 for all others. The event `protection` has it in words.",
    (*JOB, MetricLabel("cause", "of the level", tuple(cause.value for cause in ProtectionCause))),
)
JOB_RANK_PROTECTION = Metric(
    "torchrelay_job_ranks_by_protection",
    _GAUGE,
    "ranks",
    _CONTROLLER,
    "Ranks of the job by how far they are protected: by the worst effect of what is missing.",
    (*JOB, MetricLabel("protection", "of the rank", tuple(RANK_PROTECTION))),
)
JOB_STEP = Metric(
    "torchrelay_job_step_seconds", _GAUGE, "seconds", _CONTROLLER, "Median of the latest 64 steps; 0 before two.", JOB
)
JOB_COST = Metric(
    "torchrelay_job_step_cost_seconds",
    _GAUGE,
    "seconds",
    _CONTROLLER,
    "What a step costs on the training thread, of the rank that has the highest, as its latest report says.",
    (*JOB, MetricLabel("part", "of the cost", tuple(COSTS))),
)
JOB_COST_SHARE = Metric(
    "torchrelay_job_step_cost_ratio",
    _GAUGE,
    "ratio",
    _CONTROLLER,
    "Processor time of capture by that of a step: median of the latest steps, of the rank that has the highest.",
    JOB,
)
JOB_RESTARTS = Metric(
    "torchrelay_job_restarts",
    _GAUGE,
    "restarts",
    _CONTROLLER,
    "How often the job began again in new processes, so far.",
    JOB,
)
JOB_INCIDENTS = Metric(
    "torchrelay_job_incidents_total",
    _COUNTER,
    "migrations",
    _CONTROLLER,
    "Migrations that failed although the protection report had promised them.",
    JOB,
)
JOB_MOVES_NOT_MADE = Metric(
    "torchrelay_job_moves_not_made_total",
    _COUNTER,
    "moves",
    _CONTROLLER,
    "Planned moves that were asked for and did not take place, or have to wait.",
    JOB,
)
MIGRATIONS = Metric(
    "torchrelay_migrations_total",
    _COUNTER,
    "migrations",
    _CONTROLLER,
    "Migrations of all jobs that are over.",
    (
        KIND,
        OUTCOME,
        MetricLabel("cause", "why it began", tuple(cause.value for cause in MigrationCause)),
    ),
)
REHEARSALS = Metric(
    "torchrelay_rehearsals_total",
    _COUNTER,
    "rehearsals",
    _CONTROLLER,
    "Rehearsals of all jobs, by how they ended.",
    (MetricLabel("outcome", "how it ended", tuple(REHEARSAL_OUTCOMES)),),
)
VERDICTS = Metric(
    "torchrelay_health_verdicts_total",
    _COUNTER,
    "verdicts",
    _CONTROLLER,
    "What evidence against devices, nodes and numbers meant, in all jobs.",
    (
        MetricLabel("action", "that the policy asks for", ACTIONS),
        MetricLabel("outcome", "what came of it", OUTCOMES_OF_VERDICTS),
    ),
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
    "The same by phase; `detect` is the latency of detection, from the fault only with --inject, else from what the controller "
    "takes for its beginning. Phases that a migration did not have are left out.",
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

LEADS = Metric(
    "torchrelay_controller_leads",
    _GAUGE,
    "1 or 0",
    _CONTROLLER,
    "1 for the controller that leads. In a cluster the other replicas tell 0.",
)
API_CALLS = Metric(
    "torchrelay_kubernetes_requests_total",
    _COUNTER,
    "requests",
    _CONTROLLER,
    "Requests to the Kubernetes API. A watch counts when it ends.",
    (
        MetricLabel("verb", "of the request", (*READS, *WRITES)),
        MetricLabel("outcome", "`refused`: the API said no for good; `away`: it can be tried again", API_OUTCOMES),
    ),
)
API_TIME = Metric(
    "torchrelay_kubernetes_request_duration_seconds",
    _HISTOGRAM,
    "seconds",
    _CONTROLLER,
    "How long requests to the Kubernetes API took, watches left out.",
    (MetricLabel("verb", "of the request", tuple(verb for verb in (*READS, *WRITES) if verb != "watch")),),
    LAG_S,
)
AGENT_CONNECTED = Metric(
    "torchrelay_agent_connected", _GAUGE, "1 or 0", _AGENT, "1 while the agent has its stream to the controller."
)
AGENT_AWAY = Metric(
    "torchrelay_agent_controller_away_seconds",
    _GAUGE,
    "seconds",
    _AGENT,
    "Since the controller was last there; 0 while it is.",
)
AGENT_WAITING = Metric(
    "torchrelay_agent_reports_waiting", _GAUGE, "reports", _AGENT, "Reports that the controller has not taken yet."
)
AGENT_PROCESSES = Metric(
    "torchrelay_agent_processes", _GAUGE, "processes", _AGENT, "Training processes that the agent looks after."
)
AGENT_ROOM = Metric(
    "torchrelay_agent_room_bytes",
    _GAUGE,
    "bytes",
    _AGENT,
    "Free bytes where journals lie, and where a just-in-time checkpoint would go first. On machines alone.",
    (MetricLabel("place", "what goes there", (JOURNALS, CHECKPOINTS)),),
)
CERTIFICATE_BEGINS = Metric(
    "torchrelay_certificate_not_before_timestamp_seconds",
    _GAUGE,
    "seconds since 1970",
    _BOTH,
    "From when the certificate counts: six hours before an agent's, and a day before the authority, was made. In a cluster alone.",
    (CERTIFICATE,),
)
CERTIFICATE_ENDS = Metric(
    "torchrelay_certificate_not_after_timestamp_seconds",
    _GAUGE,
    "seconds since 1970",
    _BOTH,
    "When the certificate expires. In a cluster alone.",
    (CERTIFICATE,),
)
LOOP_LAG = Metric(
    "torchrelay_event_loop_lag_seconds",
    _HISTOGRAM,
    "seconds",
    _BOTH,
    "How late the event loop came to what was due, looked at twice a second.",
    buckets=LAG_S,
)
LOOP_HELD_UP = Metric(
    "torchrelay_event_loop_held_up_seconds",
    _GAUGE,
    "seconds",
    _BOTH,
    "For how long the event loop has not moved. More than 0 only where a scrape waited for it for 4 s: nothing else is told then.",
)
BUILD_INFO = Metric(
    "torchrelay_build_info",
    _GAUGE,
    "1",
    _BOTH,
    "Always 1.",
    (MetricLabel("version", "of torchrelay", bound="versions that run"),),
)

METRICS: tuple[Metric, ...] = tuple(value for value in dict(globals()).values() if isinstance(value, Metric))
