"""The controller's configuration: one JSON file, written by the process that starts the controller."""

from __future__ import annotations

import dataclasses
import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from torchrelay.protocol.errors import UserError
from torchrelay.protocol.options.handed_on import ControllerOptions
from torchrelay.protocol.transport.wire import field_types
from torchrelay.protocol.words.phases import Deadlines


@dataclass(frozen=True)
class Policy:
    """Numbers behind the controller's decisions.

    Noticing takes up to a second more: a hang is to be replaced within three steps plus 5 s, a deadlock within three steps
    plus 2 s.
    A rank hangs that has shown no life for `hang_step_factor` times the median step plus `hang_extra_s`, while peers
    wait, or plus `hang_asleep_s` where nothing but itself could wake it; at least `slack_hang_s` where it loads data, evaluates
    or saves, or where a clock or a program beside the job may wake it; a stopped process after `stopped_s`; one that computes
    (the kernel says so) after `busy_hang_s`.
    Where a rank stands is asked `explain_lead_s` before a verdict could fall, again after `explain_every_s` and then ever more
    rarely; it is watched for `explain_watch_s`, and a verdict waits `explain_grace_s` for the answer.
    Where all ranks wait, they are asked again after `explain_waiting_s`, then after twice that, and at most every
    `explain_waiting_most_s`: a connection counts as dead whose peer has not answered for `link_dead_s`, and for
    `link_alone_s` where others between the same two ranks live. After `link_quiet_s` without data on any connection nothing is
    under way between ranks that all wait.
    A rank that hangs and cannot be replaced ends the job after `hang_timeout_s`; 0: after the timeout of its process group.
    `hang_timeout_option`: what sets it.
    A planned migration stops at least `quiesce_steps` steps and `quiesce_margin_s` ahead.
    `failure_grace_s`: how long a script that failed may take to end by itself. `agent_grace_s`: how long the agent of a
    running job may be away. A node is given up with which training stands still, once its agent has been away for
    `node_away_s` or, where the connection is still there, silent for `node_silent_s`; at least one rank elsewhere must have
    waited for `node_stuck_s`. A rank is moved to another machine for the job's protection once all has been calm for
    `spread_calm_s`.
    """

    hang_step_factor: float = 3.0
    hang_extra_s: float = 4.0
    hang_asleep_s: float = 1.2
    stopped_s: float = 0.4
    slack_hang_s: float = 60.0
    busy_hang_s: float = 600.0
    hang_timeout_s: float = 0.0
    hang_timeout_option: str = "--hang-timeout"
    stale_progress_s: float = 3.0
    explain_lead_s: float = 3.8
    explain_every_s: float = 4.0
    explain_waiting_s: float = 2.2
    explain_waiting_most_s: float = 9.0
    explain_watch_s: float = 1.0
    explain_grace_s: float = 4.0
    link_dead_s: float = 2.5
    link_alone_s: float = 30.0
    link_quiet_s: float = 8.0
    quiesce_steps: int = 2
    quiesce_margin_s: float = 0.3
    failure_grace_s: float = 10.0
    agent_grace_s: float = 30.0
    node_away_s: float = 3.0
    node_silent_s: float = 7.0
    node_stuck_s: float = 1.0
    spread_calm_s: float = 30.0


@dataclass(frozen=True)
class ControllerConfig(ControllerOptions):
    """Field names, those of ControllerOptions too, are the keys of the file; those with a default may be left out.

    `listen_port` 0 takes a free one. `address_file` is written, whole, once the controller listens:
    `{"host": ..., "port": ..., "pid": ...}`. `jit_dir`: below it goes a just-in-time checkpoint. `resume_dir`: one to
    start from, or empty. `resume_command`: what to tell the user after a just-in-time checkpoint, `{directory}` is
    filled in.
    `policy` and `deadlines` override single numbers of Policy and phases.Deadlines.
    """

    run_id: str
    nnodes: int
    nproc_per_node: int
    secret_file: str
    address_file: str
    jit_dir: str
    master_addr: str
    master_port: int
    checks_only: bool = False
    """Whether checks of the machines are to be compared, and no job is served."""
    listen_host: str = "127.0.0.1"
    listen_port: int = 0
    port_is_held: bool = False
    """Whether the process that starts the controller keeps the port for it, see `make_server`."""
    metrics_host: str = "127.0.0.1"
    metrics_port: int = 0
    """The port that answers Prometheus; 0: none."""
    epoch: int = 0
    """On several machines: the number of this controller in the job's life.

    With 0 there is no other one that could lead (see `quorum`).
    """
    follows: int = 0
    """The epoch of the controller that this one takes over from."""
    job_id: str = ""
    """The name of the job in its cluster, the same when it begins again: its just-in-time checkpoints say it."""
    job_name: str = ""
    """Tells this job from others of the same secret."""
    node: str = ""
    """The agent of the controller's own machine."""
    members: tuple[str, ...] = ()
    """The machines of the job when it takes over, as `members.member_line` writes them."""
    members_before: tuple[str, ...] = ()
    """The machines of the job before it began again, in the same way."""
    shared: bool = False
    """Whether these machines are known to see the same folder `jit_dir`."""
    nodes: tuple[str, ...] = ()
    """Every name that an agent of the job has had."""
    takes_over: bool = False
    """Whether the job has begun under another controller, which is gone."""
    holders: tuple[str, ...] = ()
    """The worker that had each rank then, as far as the controller's starter knows."""
    adopted: bool = False
    """Whether others start the processes (in pods): the processes come and go, and ask what they are to be."""
    observe: bool = False
    """Whether the job is only watched: no rank of it is replaced or moved."""
    planned_only: bool = False
    """Whether ranks are moved while they live, and a lost one ends the job."""
    restarts: bool = False
    """Whether the job can begin again in other processes, once it cannot go on in these."""
    spares_barred: str = ""
    """Why no spare takes over a lost rank, by the user's choice; empty: one does."""
    respawn_limit: int = 0
    """How often within an hour a process is started in the place of a lost rank's, where no spare takes over; 0: never.

    `respawned`: RANK and time of day in seconds, of each process that was started before this controller. `respawn_option`: what
    sets the limit. `respawn_barred`: why no process is started, by the user's choice.
    """
    respawned: tuple[str, ...] = ()
    respawn_option: str = "--respawn-limit"
    respawn_barred: str = ""
    imports_differ: bool = False
    """Whether files that the script imports differed between machines, under a controller before this one."""
    refill: bool = False
    """Whether new spares are made where there are fewer than the job began with."""
    jit_barred: str = ""
    """Why survivors save no just-in-time checkpoint, by the user's choice; empty: they do."""
    jit_prefix: str = ""
    worn_out: tuple[int, ...] = ()
    """Steps at which the job has begun again too often."""
    incident_dir: str = ""
    """The folder for records of migrations that failed although protection was promised; empty: none."""
    jit_dirs_more: tuple[str, ...] = ()
    """The folders for a just-in-time checkpoint if `jit_dir` cannot be written."""
    resume_dir: str = ""
    command: tuple[str, ...] = ()
    """The script with its arguments, as just-in-time checkpoints name it; empty if that is not known."""
    script_sha256: str = ""
    resume_command: str = "torchrelay run --resume {directory} ..."
    replica_action: str = ""
    """The action for a rank whose replicas differ from it: one of numbers.ACTIONS; empty: as the policy says."""
    lease_s: float = 0.0
    """The time after which a machine that hears from no leading controller ends its processes; 0: it does not."""
    policy: Policy = field(default_factory=Policy)
    deadlines: Deadlines = field(default_factory=Deadlines)

    @property
    def world_size(self) -> int:
        return self.nnodes * self.nproc_per_node

    @property
    def parks_scripts(self) -> bool:
        """Whether processes wait in front of their scripts until this controller lets them begin; AgentConfig has the same."""
        anew = self.restarts_done > 0 and not self.resume_dir
        return anew and self.nnodes > 1 and not (self.adopted or self.takes_over)

    @property
    def losses_barred(self) -> str:
        """Why lost ranks are not replaced, by the user's choice; empty: they are."""
        return "its policy is planned-only: lost ranks are not replaced" if self.planned_only else ""


def load_config(path: Path) -> ControllerConfig:
    """Read the configuration. Raises UserError for a file that cannot be read or does not fit."""
    try:
        values = json.loads(path.read_bytes())
    except (OSError, ValueError) as e:
        raise UserError(f"the controller's configuration {path} cannot be read: {e}") from e
    config: ControllerConfig = _read(path, ControllerConfig, values)
    if config.nnodes < 1 or config.nproc_per_node < 1:
        raise UserError(f"{path}: nnodes and nproc_per_node start at 1")
    return config


def _read(path: Path, cls: Any, values: Any) -> Any:
    if not isinstance(values, dict):
        raise UserError(f"{path}: {values!r} is no JSON object")
    hints = field_types(cls)
    if unknown := sorted(set(values) - set(hints)):
        raise UserError(f"{path}: unknown key {', '.join(unknown)}; known are {', '.join(hints)}")
    needed = {
        f.name
        for f in dataclasses.fields(cls)
        if f.default is dataclasses.MISSING and f.default_factory is dataclasses.MISSING
    }
    if missing := sorted(needed - set(values)):
        raise UserError(f"{path}: {', '.join(missing)} is missing")
    return cls(**{k: _value(path, k, hints[k], v) for k, v in values.items()})


def _value(path: Path, key: str, hint: Any, value: Any) -> Any:
    if dataclasses.is_dataclass(hint):
        return _read(path, hint, value)
    if hint is float and type(value) is int:
        return float(value)
    if hint == tuple[str, ...] and isinstance(value, list) and all(type(v) is str for v in value):
        return tuple(value)
    if type(value) is hint:
        return value
    raise UserError(f"{path}: {key} cannot be {value!r}")
