"""The one home of every name that crosses a process boundary."""

from __future__ import annotations

from typing import NewType

Rank = NewType("Rank", int)
WorkerId = NewType("WorkerId", str)
"""One training process, for its whole life: `n0.w2`, `n0.s0`. A rank moves between workers; a worker never changes."""

NO_RANK = Rank(-1)

PROTECTED_BACKENDS = ("gloo", "nccl")
"""Of torch.distributed: groups on these can be moved to other processes."""

# Environment of a training process. The shim reads these once, when the interpreter starts, and removes them.
ENV_SOCKET = "TORCHRELAY_SOCKET"
ENV_WORKER = "TORCHRELAY_WORKER"
ENV_TOKEN = "TORCHRELAY_TOKEN"
ENV_TOKEN_FILE = "TORCHRELAY_TOKEN_FILE"
"""In place of the token where the agent did not start the process (in a pod): the file that the agent writes it to, at random."""
ENV_JOURNAL = "TORCHRELAY_JOURNAL"
ENV_SPARE = "TORCHRELAY_SPARE"
ENV_ADDRESS = "TORCHRELAY_ADDRESS"
ENV_INJECT = "TORCHRELAY_INJECT"
ENV_ROOTS = "TORCHRELAY_ROOTS"
ENV_PYTHONPATH_WAS = "TORCHRELAY_PYTHONPATH_WAS"
ENV_BUDDY_EVERY = "TORCHRELAY_BUDDY_EVERY"
"""After this many steps a rank copies its state into host memory, again and again."""
ENV_BUDDY_SYNC = "TORCHRELAY_BUDDY_SYNC"
"""With it, set to 1: no rank begins a step before the copies at its head are whole."""
ENV_KEPT = "TORCHRELAY_KEPT"
"""With it: the folder of this node, in shared memory, where these copies lie."""
ENV_WATCH = "TORCHRELAY_WATCH"
"""Watches on numbers, as `numbers.parse_watches` reads them."""
ENV_COST_LIMIT = "TORCHRELAY_COST_LIMIT"
"""Percent of a step that capture may take, as in `cost_limit`; 0: whatever it takes."""
ENV_TRANSFER = "TORCHRELAY_TRANSFER_ENCRYPTION"
"""As in `transfer_protection`; absent: the default."""
ENV_HOLD_AT = "TORCHRELAY_HOLD_AT"
"""At this boundary a rank stands still for good, and until then its files go aside: `torchrelay check`."""
ENV_MADE_FILES = "TORCHRELAY_MADE_FILES"
"""With it: where the rank writes down which files it has made."""
ENV_CUT_LOADERS = "TORCHRELAY_CUT_LOADERS"
"""With it: how many batches a data loader gives; 0 or absent: all that it has."""
ENV_ASK = "TORCHRELAY_ASK"
"""Set to 1 where the agent did not start the process (in a pod): it waits for the agent, and asks what it is to be."""
ENV_GRACE = "TORCHRELAY_GRACE_S"
"""Of a pod: seconds between SIGTERM and SIGKILL, in which a rank can still be moved."""
ENV_ENTROPY = "TORCHRELAY_ENTROPY"
"""With it: what a rank's set-up draws by chance is made of this; `torchrelay drill` sets it for scripts that seed nothing."""
HASH_SEED_VARIABLE = "PYTHONHASHSEED"
ENV_HASH_SEED_WAS = "TORCHRELAY_HASH_SEED_WAS"
"""PYTHONHASHSEED is ours, so that sets of strings have one order in all processes of a job: what the user had there, or nothing."""
HASH_SEED = "20261123"
"""The same for all jobs: one that is resumed elsewhere, by another agent, has the same order too."""
ENV_LOG = "TORCHRELAY_LOG"
"""`json`, a blank and the run's id: lines of logs are JSON; see `log_lines`."""
ENV_LOG_NAMESPACE = "TORCHRELAY_LOG_NAMESPACE"
"""Of a pod: the namespace in the id in ENV_LOG, which the kubelet makes."""
ENV_LOG_JOB = "TORCHRELAY_LOG_JOB"
"""Of a pod: the job in the id in ENV_LOG, which the kubelet makes."""
ENV_LOG_LEVEL = "TORCHRELAY_LOG_LEVEL"
"""Of controller, agent, webhook and dashboard: debug, info, warning or error; absent: each part's own."""
SHIM_ENV = (
    ENV_SOCKET,
    ENV_WORKER,
    ENV_TOKEN,
    ENV_TOKEN_FILE,
    ENV_JOURNAL,
    ENV_SPARE,
    ENV_ADDRESS,
    ENV_INJECT,
    ENV_ROOTS,
    ENV_PYTHONPATH_WAS,
    ENV_BUDDY_EVERY,
    ENV_BUDDY_SYNC,
    ENV_KEPT,
    ENV_WATCH,
    ENV_COST_LIMIT,
    ENV_TRANSFER,
    ENV_HOLD_AT,
    ENV_MADE_FILES,
    ENV_CUT_LOADERS,
    ENV_ASK,
    ENV_GRACE,
    ENV_ENTROPY,
    ENV_HASH_SEED_WAS,
    ENV_LOG,
    ENV_LOG_NAMESPACE,
    ENV_LOG_JOB,
)

ENV_REHEARSAL = "TORCHRELAY_REHEARSAL"
"""Set to 1 for the script in a process that rehearses a join, so that it can leave out what the world would see."""
ENV_CHECK = "TORCHRELAY_CHECK"
"""Set to 1 for the script while `torchrelay check` looks at it, so that it can leave out what the world would see."""

ENV_RECORD = "TORCHRELAY_RECORD"
"""During `torchrelay drill`: what its recorder is to do, as JSON; see `cli.drill.recording`."""

# Environment of the command line.
ENV_SECRET = "TORCHRELAY_SECRET"
"""Shared by all machines of one job; the certificates of the job are derived from it."""
ENV_STATE_DIR = "TORCHRELAY_STATE_DIR"
"""Where the running jobs of this user are listed; defaults to a folder in the user's run-time directory."""
ENV_HISTORY_DIR = "TORCHRELAY_HISTORY_DIR"
"""Where the events of runs are kept after their end; empty: nowhere. Defaults to a folder in the user's state directory, and to
nowhere where ENV_STATE_DIR is set."""
ENV_NOTIFY = "TORCHRELAY_NOTIFY"
"""The URL that `torchrelay run` posts messages to, where `--notify` does not name one. On the command line everybody who can
list processes reads it."""

TEMPORARY_PREFIX = "torchrelay-tmp-"
"""Of temporary folders. One that no living process holds is removed by the next command."""

TOLD_TO_END = "its process was told to end (SIGTERM)"
"""Why a process asks to be moved."""

PROTECTED_FILE = "protected"
"""In a pod's run folder while its job is protected: a launcher looks for it."""
OVER_FILE = "over"
"""There, once the agent has ended: the exit code that is left for a process that was only parked."""

MANIFEST = "manifest.json"
"""Of a just-in-time checkpoint; written last."""
ASKED_FOR = "-asked"
"""Ends the name of a checkpoint's folder that somebody asked for: torchrelay removes it by itself only to keep few of old runs."""
JIT_PREFIX = "torchrelay-jit-"
"""Of the folders of just-in-time checkpoints among those that a script writes."""
ENV_CHECKPOINT = "TORCHRELAY_CHECKPOINT"
"""Of a script that begins again: the newest whole checkpoint that was found on disk."""


def machines_file(run_id: str) -> str:
    """Return the name of a file in the folder of just-in-time checkpoints: which machines the job has, and how to reach them."""
    return f"{run_id}-machines.json"


def mark_file(run_id: str) -> str:
    """Return the name of a file in that folder that tells it from folders at the same path on other machines."""
    return f"{run_id}-folder"


def claim_file(run_id: str, job: str, after: int) -> str:
    """Return the name of the file in that folder that says which controller leads after the one of epoch `after`."""
    return f"{run_id}-{job}-after-{after}"


LIFE_SIGN = "-lives"


def life_sign_file(run_id: str) -> str:
    """Return the name of the file in that folder that any run writes again and again while it lives."""
    return f"{run_id}{LIFE_SIGN}"


DEFAULT_CONTROLLER_PORT = 29476
DEFAULT_MASTER_PORT = 29500

DEFAULT_METRICS_PORT = 29480
DEFAULT_DASHBOARD_PORT = 8471
"""What the docs, and the agents of a cluster, use for Prometheus."""
AGENT_METRICS_OFFSET = 1
"""On machines the agent answers Prometheus so many ports above its controller."""

EXIT_USAGE = 2
"""The command line cannot work, or nothing could be begun: the message says what to do."""
RESPAWN_LIMIT_DEFAULT = 3
"""How often within an hour a process is started in the place of a rank's lost one."""
EXIT_NO_SPARE_LEFT = 75
"""EX_TEMPFAIL of sysexits.h: the job ended with a just-in-time checkpoint and can go on from it."""
EXIT_FAULT_NOT_INJECTED = 76
"""A fault that was asked for with --inject never fired, or a planned one led to no migration."""

EXIT_SUSPECT_NUMBER = 77
"""A watch on numbers has stopped the job before an update."""

EXIT_STOOD_DOWN = 78
"""Of a controller alone: it does not lead the job, another one does or nobody."""

EXIT_CHECK_PARTLY = 3
"""Part of the script is protected; 0: all of it, 1: the script failed."""
EXIT_CHECK_UNPROTECTED = 4
"""No rank could be replaced."""

EXIT_DRILL_OTHERWISE = 3
"""At worst the same numbers after more steps done again; 0: the same numbers each time, 1: the script failed."""
EXIT_DRILL_REFUSED = 4
"""A job did not go on after a fault, as had been said before."""
EXIT_DRILL_FALSE_PROMISE = 5
"""A job did not go on after a fault, although the report had promised it."""
EXIT_DRILL_WRONG = 6
"""A job went on with other numbers."""
EXIT_DRILL_NOT_DETERMINISTIC = 7
"""The script differs from itself, so that nothing can be told about faults."""
EXIT_DRILL_NOTHING_STRUCK = 8
"""No fault struck."""

MADE_FILES = "made-files"
"""In the run's folder, during `torchrelay check`: what its ranks have made."""

SEEN_FILE = "seen"
"""Beside it: what its ranks went through, one JSON object a line: `kind`, `text`, `file`, `line`."""
SEEN_EPOCH = "epoch"
SEEN_EVALUATION = "evaluation"
SEEN_SAVE = "save"

BARS = "bars"
BARS_LATER = "bars-later"
PART_OF_STEP = "part-of-step"
BEHIND_UPDATE = "behind-update"
ALONE = "alone"
LEFT = "left"
GOES_BACK = "goes-back"
GAP_EFFECTS = {
    BARS: "no rank can be replaced",
    BARS_LATER: "from some point on no rank can be replaced",
    PART_OF_STEP: "a rank that is lost in a certain part of a step cannot be replaced",
    BEHIND_UPDATE: "a rank that is lost between the update of a step and the next step cannot be replaced",
    ALONE: "a rank that is lost without warning cannot be replaced; a planned move works",
    GOES_BACK: "if it is lost without warning, all ranks go back to their latest copies and do the steps since then again",
    LEFT: "ranks are replaced without it: a new process has what its own set-up made",
}
"""What a gap in the protection does, by its name on the wire."""

NO_JOINER = "no-joiner"
GAP_EFFECTS[NO_JOINER] = (
    "no spare takes over this rank: if it is lost, the job goes on from copies or ends in a just-in-time checkpoint"
)
REHEARSAL_SAME = "same"
REHEARSAL_DIFFERS = "differs"
REHEARSAL_FAILED = "failed"
REHEARSAL_OPEN = "open"
REHEARSAL_BROKEN_OFF = "broken-off"
REHEARSAL_OUTCOMES = {
    REHEARSAL_SAME: "the process came to the boundary and held what the journal says",
    REHEARSAL_DIFFERS: "the process came to the boundary and held something else",
    REHEARSAL_FAILED: "the process did not come to the boundary, and no other one would",
    REHEARSAL_OPEN: "the process could not go on for a reason that says nothing about the rank",
    REHEARSAL_BROKEN_OFF: "something else had priority",
}
"""How a rehearsal can end, by its name on the wire."""

GATE_SECRET_BYTES = 32
"""Of what the ranks of a generation prove to each other when they connect (`Protect`, `Rebuild`)."""
MAX_FRAME_BYTES = 16 << 20
"""Largest message on the unix socket; journals and collective records are far smaller."""
MAX_MESSAGE_BYTES = 8 * MAX_FRAME_BYTES
"""On gRPC: several frames of the unix socket at most, such as the journals of one worker, or a plan with two and a log."""
