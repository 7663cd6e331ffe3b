"""What the command hands on to the job's controller and agents, by name: an option that only travels is declared here and there.

Each field has the name of an option, or of something that the command knows of the run. Configurations inherit the fields as keys.
"""

from __future__ import annotations

from dataclasses import dataclass

from torchrelay.protocol.options.cost_limit import MOST_SHARE_PERCENT


@dataclass(frozen=True, kw_only=True)
class JobOptions:
    """What the controller and every agent are told alike."""

    check_steps: int = 0
    """After this many steps of every rank the job is over, with the protection report; 0: it is no check."""
    scripts_begun: int = 0
    """How often the command has started the script anew from its beginning."""
    buddy_every: int = 0
    """After so many steps each rank copies its state, to go back to when nobody else holds it; 0: never."""
    buddy_sync: bool = False
    """No step begins before these copies are whole."""


@dataclass(frozen=True, kw_only=True)
class ControllerOptions(JobOptions):
    """What the controller alone is told."""

    restarts_done: int = 0
    """How often the command has started all processes anew."""
    migrations_begun: int = 0
    """How many an earlier controller has counted."""
    rehearse_every_s: float = 0.0
    """After so long a spare goes a joiner's way once more, to see whether it would hold what a rank holds; 0: never."""
    machine_wait_s: float = 0.0
    """For so long a job that is started anew waits for a machine that is missing; 0: without end."""
    incident_journals: bool = False
    """Incidents are written down with the journals themselves, which hold what the script's variables hold."""
    health_policy: str = ""
    """What is done about faults of devices: a file; empty: the default."""
    health_observe: bool = False
    """The verdicts of the health policy are told, and nothing is done."""


@dataclass(frozen=True, kw_only=True)
class AgentOptions(JobOptions):
    """What agents alone are told."""

    node_rank: int
    spares: int
    joins: bool = False
    """The job has begun without this machine, whose processes are spares for it."""
    role: str = "default"
    """As torchrun's flag."""
    check_batches: int = 0
    """In a check, how many batches a data loader gives; 0: all that it has."""
    cost_limit_percent: float = MOST_SHARE_PERCENT
    """Of a step: where watching the script's state takes more, training goes on without protection; 0: no limit."""
    dcgm: str = "auto"
    """URL of a dcgm-exporter, `auto` or `off`."""
    replay: str = ""
    """A timeline of faults that is played on a fake machine once the job is protected."""
    jit_dirs: tuple[str, ...] = ()
    """Where a just-in-time checkpoint may go."""
