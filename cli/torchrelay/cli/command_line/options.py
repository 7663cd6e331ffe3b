"""What `torchrelay run` was asked to do, once it is checked."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from torchrelay.cli.command_line.addresses import leads_first
from torchrelay.cli.command_line.given import GivenOptions
from torchrelay.protocol.logs.log_lines import LogFormat
from torchrelay.protocol.notify.target import NotifyTarget
from torchrelay.protocol.options.faults import Fault
from torchrelay.protocol.options.numbers import NumberWatch


@dataclass(frozen=True)
class RunOptions:
    """A checked command line: what was `given`, and the options that checking has made something else of, or that change.

    What is among the fields is read from them, and the rest from `given`. `redirects`, `tee`: for each local rank 0 (none),
    1 (stdout), 2 (stderr) or 3 (both).
    """

    given: GivenOptions
    script: str
    nproc_per_node: int
    nnodes: int
    node_rank: int
    master_addr: str
    master_port: int
    redirects: tuple[int, ...]
    tee: tuple[int, ...]
    log_dir: Path | None
    spares: int
    rehearse_every_s: float
    hang_timeout_s: float
    """0: that of the process group."""
    lease_s: float
    machine_wait_s: float
    """Several machines: how long one goes on that hears of nobody who leads."""
    transfer_encryption: str
    watches: tuple[NumberWatch, ...]
    faults: tuple[Fault, ...]
    events: Path | None
    resume: Path | None
    jit_dirs: tuple[Path, ...]
    """Where just-in-time checkpoints go: the first one that can be written."""
    health_policy: Path | None
    watch_folders: tuple[Path, ...]
    node_notices: tuple[Path, ...]
    replay: Path | None
    max_restarts: int
    """How often the command may start all processes anew."""
    controllers: tuple[tuple[str, int], ...]
    """Where the job's controller may listen. With none or several the machine with node rank 0 starts the first one."""
    controller_port: int
    """Of one that this command starts, at first or later. 0: any free port. The command holds it: leading.held_port."""
    metrics: tuple[str, int] | None
    """Where the controller answers Prometheus; the agent does so `names.AGENT_METRICS_OFFSET` above."""
    log_format: LogFormat
    name: str
    """For people: as commands and lists show it beside the job's id."""
    notify: NotifyTarget | None
    secret: bytes | None
    """None: this job is alone on its machine, and a secret is made for it."""
    check_steps: int = 0
    """After this many steps the job is over, with its protection report; 0: it is no check."""
    check_batches: int = 0
    """In a check, how many batches a data loader gives; 0: all that it has."""
    checks_only: bool = False
    """Whether a controller that is started has the checks of the machines meet, and serves no job."""
    restarts_done: int = 0
    """How often the command has started all processes anew; `scripts_begun`: how often of these from the script's beginning."""
    scripts_begun: int = 0
    migrations_begun: int = 0
    respawned_s: tuple[tuple[int, float], ...] = ()
    imports_differ: bool = False
    jit_marks: tuple[str, ...] = ()
    """Several machines: what stands in each of `jit_dirs`, see known_machines.mark."""
    node: str = ""
    """What the agent is called; `joins`: the job has begun without this machine, which brings spares."""
    joins: bool = False

    @property
    def controller(self) -> tuple[str, int] | None:
        """Return where the job's controller listens at first; None if this command starts it."""
        return None if leads_first(self.node_rank, self.controllers) else self.controllers[0]

    @property
    def parks_scripts(self) -> bool:
        """Return whether ranks wait before they run their scripts, until it is clear which machines are there."""
        anew = self.restarts_done > 0 and self.resume is None
        return anew and self.nnodes > 1 and not self.joins

    @property
    def needs_fake_machine(self) -> bool:
        """Return whether faults strike devices, so that the devices must not be real ones."""
        return self.replay is not None or any(fault.is_of_a_device for fault in self.faults)

    @property
    def world_size(self) -> int:
        return self.nnodes * self.nproc_per_node
