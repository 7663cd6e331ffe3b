"""What `torchrelay run` was asked to do: the command line, and the one check of all of it before anything starts."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from torchrelay.cli.notify.notices import NoticeKind
from torchrelay.cli.notify.target import BodyForm, NotifyTarget
from torchrelay.cli.restarting.choice import MAX_RESTARTS_DEFAULT
from torchrelay.cli.times import time_s
from torchrelay.protocol.cost_limit import MOST_SHARE_PERCENT
from torchrelay.protocol.errors import UserError
from torchrelay.protocol.faults import COMPILERS, CONTROLLER, COPY, NODE, Fault, parse_fault
from torchrelay.protocol.health.policy_file import read_policy
from torchrelay.protocol.journals.kept import COPIES_AS_NEEDED
from torchrelay.protocol.log_lines import LogFormat
from torchrelay.protocol.names import (
    AGENT_METRICS_OFFSET,
    DEFAULT_CONTROLLER_PORT,
    DEFAULT_MASTER_PORT,
    DEFAULT_METRICS_PORT,
    ENV_SECRET,
    RESPAWN_LIMIT_DEFAULT,
)
from torchrelay.protocol.numbers import NumberWatch, parse_watch
from torchrelay.protocol.security.transfer_protection import INTEGRITY, checked

LOOPBACK = "127.0.0.1"
LEASE, LEAST_LEASE_S = "60s", 20.0
MACHINE_WAIT = "10m"
REHEARSE_EVERY = "30m"
HANG_TIMEOUT = "0"
RESPAWN_LIMIT = RESPAWN_LIMIT_DEFAULT
JIT_DIR = Path("torchrelay-jit")
MINIMUM_SECRET_CHARACTERS = 16


@dataclass(frozen=True)
class GivenOptions:
    """The command line, unchecked. None: not given."""

    script: str
    script_args: tuple[str, ...] = ()
    nproc_per_node: str = "1"
    nnodes: str = "1"
    node_rank: int = 0
    master_addr: str | None = None
    master_port: int | None = None
    module: bool = False
    no_python: bool = False
    redirects: str = "0"
    tee: str = "0"
    log_dir: Path | None = None
    role: str = "default"
    spares: int = 0
    refill: bool = True
    respawn_limit: int = RESPAWN_LIMIT
    buddy_every: int = COPIES_AS_NEEDED
    buddy_sync: bool = False
    rehearse_every: str = REHEARSE_EVERY
    hang_timeout: str = HANG_TIMEOUT
    lease: str = LEASE
    machine_wait: str = MACHINE_WAIT
    cost_limit: float = MOST_SHARE_PERCENT
    transfer_encryption: str = INTEGRITY
    watch: tuple[str, ...] = ()
    inject: tuple[str, ...] = ()
    events: Path | None = None
    json_summary: bool = False
    resume: Path | None = None
    jit_dirs: tuple[Path, ...] = (JIT_DIR,)
    incident_journals: bool = False
    health_policy: Path | None = None
    observe: bool = False
    watch_folders: tuple[Path, ...] = ()
    node_notices: tuple[Path, ...] = ()
    dcgm: str = "auto"
    replay: Path | None = None
    max_restarts: int | None = None
    controller: str | None = None
    controller_port: int | None = None
    metrics_port: str | None = None
    json_file: Path | None = None
    quiet: bool = False
    verbose: bool = False
    log_format: str = "text"
    name: str | None = None
    notify: str | None = None
    notify_on: str | None = None
    notify_format: str = "json"
    notify_template: Path | None = None


@dataclass(frozen=True)
class RunOptions:
    """A checked command line. `redirects`, `tee`: for each local rank 0 (none), 1 (stdout), 2 (stderr) or 3 (both)."""

    script: str
    script_args: tuple[str, ...]
    module: bool
    no_python: bool
    nproc_per_node: int
    nnodes: int
    node_rank: int
    master_addr: str
    master_port: int
    redirects: tuple[int, ...]
    tee: tuple[int, ...]
    log_dir: Path | None
    role: str
    spares: int
    refill: bool
    """New spares are made where there are fewer than the job began with."""
    respawn_limit: int
    """How often within an hour a process is started in the place of a lost rank's."""
    buddy_every: int
    buddy_sync: bool
    rehearse_every_s: float
    hang_timeout_s: float
    """0: that of the process group."""
    lease_s: float
    machine_wait_s: float
    """Several machines: how long one goes on that hears of nobody who leads."""
    cost_limit: float
    transfer_encryption: str
    watches: tuple[NumberWatch, ...]
    faults: tuple[Fault, ...]
    events: Path | None
    json_summary: bool
    resume: Path | None
    jit_dirs: tuple[Path, ...]
    """Where just-in-time checkpoints go: the first one that can be written."""
    incident_journals: bool
    health_policy: Path | None
    observe: bool
    watch_folders: tuple[Path, ...]
    node_notices: tuple[Path, ...]
    dcgm: str
    replay: Path | None
    max_restarts: int
    """How often the command may start all processes anew."""
    controllers: tuple[tuple[str, int], ...]
    """Where the job's controller may listen. With none or several the machine with node rank 0 starts the first one."""
    controller_port: int
    """Of one that this command starts, at first or later. 0: any free port. The command holds it: leading.held_port."""
    metrics: tuple[str, int] | None
    """Where the controller answers Prometheus; the agent does so `names.AGENT_METRICS_OFFSET` above."""
    json_file: Path | None
    quiet: bool
    verbose: bool
    log_format: LogFormat
    name: str
    """For people: as commands and lists show it beside the job's id."""
    notify: NotifyTarget | None
    secret: bytes | None
    """None: this job is alone on its machine, and a secret is made for it."""
    given: GivenOptions
    check_steps: int = 0
    """After this many steps the job is over, with its protection report; 0: it is no check."""
    check_batches: int = 0
    """In a check, how many batches a data loader gives; 0: all that it has."""
    restarts_done: int = 0
    """How often the command has started all processes anew; `scripts_begun`: how often of these from the script's beginning."""
    scripts_begun: int = 0
    migrations_begun: int = 0
    respawned_s: tuple[tuple[int, float], ...] = ()
    jit_marks: tuple[str, ...] = ()
    """Several machines: what stands in each of `jit_dirs`, see known_machines.mark."""
    node: str = ""
    """What the agent is called; `joins`: the job has begun without this machine, which brings spares."""
    joins: bool = False

    @property
    def controller(self) -> tuple[str, int] | None:
        """Where the job's controller listens at first, if this command does not start it."""
        return None if _leads_first(self.node_rank, self.controllers) else self.controllers[0]

    @property
    def parks_scripts(self) -> bool:
        """Whether ranks wait in front of their scripts until it is clear which machines are there."""
        anew = self.restarts_done > 0 and self.resume is None
        return anew and self.nnodes > 1 and not self.joins

    @property
    def needs_fake_machine(self) -> bool:
        """Whether faults are given to devices, which must not be the real ones."""
        return self.replay is not None or any(fault.is_of_a_device for fault in self.faults)

    @property
    def world_size(self) -> int:
        return self.nnodes * self.nproc_per_node


class MachineFacts(Protocol):
    """What has to be asked of the machine while options are checked."""

    def cpu_count(self) -> int: ...
    def gpu_count(self) -> int: ...
    def port_is_free(self, port: int) -> bool: ...
    def free_port(self) -> int: ...
    def script_problem(self, script: str) -> str | None:
        """Why Python could not run `script`, or None."""

    def program_problem(self, program: str) -> str | None:
        """Why `program` could not be executed, or None."""

    def folder_problem(self, folder: Path) -> str | None:
        """Why nothing could be written into `folder` (made if absent), or None."""


def own_node_rank(given: int | None, nnodes: str, environment: Mapping[str, str]) -> int:
    """As given, else the number that Slurm has for this node among those of the step, if these are the job's machines."""
    if given is not None or nnodes == "1":
        return given or 0
    number, nodes = (environment.get(name, "") for name in ("SLURM_NODEID", "SLURM_NNODES"))
    nodes = environment.get("SLURM_STEP_NUM_NODES", nodes)
    return int(number) if number.isdecimal() and nodes == nnodes else 0


def check(
    given: GivenOptions, machine: MachineFacts, environment: Mapping[str, str], *, needs_script: bool = True
) -> RunOptions:
    """The options of a run. Raises UserError, with what to do, for whatever could not work."""
    nnodes = _node_count(given.nnodes)
    nproc = _process_count(given.nproc_per_node, machine)
    _check_nodes(given, nnodes)
    if given.spares < 0:
        raise UserError(f"--spares {given.spares}: give the number of spare processes on this machine, 0 or more")
    if given.respawn_limit < 0:
        raise UserError(f"--respawn-limit {given.respawn_limit}: give how often within an hour, 0 or more; 0: never")
    if given.buddy_every < COPIES_AS_NEEDED:
        raise UserError(f"--buddy-every {given.buddy_every}: give the steps between two copies, or 0 for none")
    if given.buddy_sync and given.buddy_every <= 0:
        raise UserError("--buddy-sync: nothing is copied; give --buddy-every, with the steps between two copies")
    if not 0 <= given.cost_limit <= 100:
        raise UserError(f"--cost-limit {given.cost_limit:g}: give percent of a step, 0 to 100; 0: no limit")
    if given.max_restarts is not None and given.max_restarts < 0:
        raise UserError(f"--max-restarts {given.max_restarts}: give a number, 0 or more; 0: never")
    if needs_script:
        _check_program(given, machine)
    faults = tuple(parse_fault(text, nnodes * nproc) for text in given.inject)
    _check_faults(given, faults, nnodes, nproc)
    _check_files(given, machine)
    _check_health(given, faults, machine)
    return RunOptions(
        script=given.script,
        script_args=given.script_args,
        module=given.module,
        no_python=given.no_python,
        nproc_per_node=nproc,
        nnodes=nnodes,
        node_rank=given.node_rank,
        master_addr=given.master_addr or LOOPBACK,
        master_port=_master_port(given, nnodes, machine),
        redirects=parse_streams("--redirects", given.redirects, nproc),
        tee=parse_streams("--tee", given.tee, nproc),
        log_dir=given.log_dir,
        role=given.role,
        spares=given.spares,
        refill=given.refill,
        respawn_limit=given.respawn_limit,
        buddy_every=given.buddy_every,
        buddy_sync=given.buddy_sync,
        rehearse_every_s=time_s("--rehearse-every", given.rehearse_every),
        hang_timeout_s=time_s("--hang-timeout", given.hang_timeout),
        lease_s=_lease_s(given.lease),
        machine_wait_s=time_s("--machine-wait", given.machine_wait),
        cost_limit=given.cost_limit,
        transfer_encryption=checked(given.transfer_encryption),
        watches=_watches(given.watch),
        faults=faults,
        events=given.events,
        json_summary=given.json_summary,
        resume=given.resume.absolute() if given.resume else None,
        jit_dirs=tuple(folder.absolute() for folder in given.jit_dirs),
        incident_journals=given.incident_journals,
        health_policy=given.health_policy.absolute() if given.health_policy else None,
        observe=given.observe,
        watch_folders=tuple(folder.absolute() for folder in given.watch_folders),
        node_notices=tuple(file.absolute() for file in given.node_notices),
        dcgm=given.dcgm,
        replay=given.replay.absolute() if given.replay else None,
        max_restarts=MAX_RESTARTS_DEFAULT if given.max_restarts is None else given.max_restarts,
        controllers=_controllers(given, nnodes),
        controller_port=_controller_port(given, nnodes),
        metrics=_metrics(given.metrics_port),
        json_file=given.json_file,
        quiet=given.quiet,
        verbose=given.verbose,
        log_format=_log_format(given.log_format),
        name=given.name or Path(given.script).stem,
        notify=_notify(given),
        secret=_secret(nnodes, environment),
        given=given,
        node=f"n{given.node_rank}",
    )


def _log_format(text: str) -> LogFormat:
    if text not in [form.value for form in LogFormat]:
        raise UserError(f"--log-format {text}: give text or json")
    return LogFormat(text)


def _lease_s(text: str) -> float:
    lease_s = time_s("--lease", text)
    if lease_s < LEAST_LEASE_S:
        raise UserError(
            f"--lease {text}: give {LEAST_LEASE_S:g}s or more, the time that another machine needs to take the lead"
        )
    return lease_s


def _watches(texts: Iterable[str]) -> tuple[NumberWatch, ...]:
    watches = tuple(map(parse_watch, texts))
    for number, watch in enumerate(watches):
        if watch.what in [w.what for w in watches[:number]]:
            raise UserError(f"--watch {watch}: {watch.what} is watched already; give each number once")
    return watches


def _node_count(text: str) -> int:
    low, colon, high = text.partition(":")
    if colon and low != high:
        raise UserError(
            f"--nnodes {text}: a job of torchrelay keeps its size; give one number, and --spares for what may fail"
        )
    if not (low.isascii() and low.isdigit()) or int(low) < 1:
        raise UserError(f"--nnodes {text}: give the number of machines, 1 or more")
    return int(low)


def _process_count(text: str, machine: MachineFacts) -> int:
    if text.isascii() and text.isdigit() and int(text) > 0:
        return int(text)
    if text == "cpu":
        return machine.cpu_count()
    if text == "auto":
        return machine.gpu_count() or machine.cpu_count()
    if text == "gpu":
        count = machine.gpu_count()
        if count == 0:
            raise UserError("--nproc-per-node gpu: no NVIDIA GPU is visible here; give a number, `cpu` or `auto`")
        return count
    raise UserError(f"--nproc-per-node {text}: give a number of processes from 1, or one of auto, cpu, gpu")


def _check_nodes(given: GivenOptions, nnodes: int) -> None:
    if not 0 <= given.node_rank < nnodes:
        raise UserError(f"--node-rank {given.node_rank}: with --nnodes {nnodes} it is a number from 0 to {nnodes - 1}")
    if nnodes > 1 and given.master_addr is None:
        raise UserError(
            f"--nnodes {nnodes} needs --master-addr: "
            "the address of the machine with --node-rank 0, the same on all machines"
        )
    if given.controller and nnodes == 1:
        raise UserError(
            "--controller is for jobs on several machines (--nnodes); on one machine the command starts its own"
        )


_LAUNCHERS = {
    "accelerate": "accelerate launch",
    "accelerate.commands.launch": "accelerate launch",
    "deepspeed": "deepspeed",
    "torchrun": "torchrun",
}
"""Commands and modules that start the script as other processes, where nothing of it would be seen."""


def _check_program(given: GivenOptions, machine: MachineFacts) -> None:
    if given.module and given.no_python:
        raise UserError("-m and --no-python exclude each other: a module is run by Python")
    launcher = _LAUNCHERS.get(given.script if given.module else Path(given.script).name)
    if launcher:
        raise UserError(
            f"{given.script} starts ranks, and so does torchrelay run: give it the script that {launcher} would start, with "
            "that one's own options as variables (ACCELERATE_MIXED_PRECISION=bf16): "
            "torchrelay run --nproc-per-node 4 train.py --its --args"
        )
    if given.no_python:
        problem = machine.program_problem(given.script)
    elif given.module:
        problem = None  # what a module is, only the interpreter that runs it can say
    else:
        problem = machine.script_problem(given.script)
    if problem:
        raise UserError(f"{given.script}: {problem}")


def _check_faults(given: GivenOptions, faults: Iterable[Fault], nnodes: int, nproc: int) -> None:
    for fault in faults:
        if fault.phase == COPY and given.buddy_every <= 0:
            raise UserError(
                f"--inject {fault}: nothing is copied; give --buddy-every, with a copy at the beginning of that step"
            )
        leads = _leads_first(given.node_rank, _controllers(given, nnodes))
        if fault.kind == CONTROLLER and (not leads or fault.rank // nproc != given.node_rank):
            raise UserError(
                f"--inject {fault}: it is killed by an agent of its own machine; take a rank of that machine, and give it there"
            )
        if fault.kind != NODE:
            continue
        if nnodes == 1:
            raise UserError(
                f"--inject {fault}: the whole job is lost with its only machine; it takes --nnodes 2 or more"
            )


def _check_files(given: GivenOptions, machine: MachineFacts) -> None:
    if given.resume is not None and not given.resume.is_dir():
        raise UserError(
            f"--resume {given.resume}: no such folder; it is the one that the message of the ended run names"
        )
    if given.log_dir is not None:
        problem = machine.folder_problem(given.log_dir)
        if problem:
            raise UserError(f"--log-dir {given.log_dir}: {problem}")
    for folder in given.jit_dirs:
        problem = machine.folder_problem(folder)
        if problem:
            raise UserError(f"--jit-dir {folder}: {problem}")
    if given.events is not None:
        if given.events.is_dir():
            raise UserError(f"--events {given.events}: is a folder; give a file")
        problem = machine.folder_problem(given.events.absolute().parent)
        if problem:
            raise UserError(f"--events {given.events}: {problem}")


def _check_health(given: GivenOptions, faults: tuple[Fault, ...], machine: MachineFacts) -> None:
    if given.health_policy is not None:
        read_policy(str(given.health_policy))
    for folder in given.watch_folders:
        if not folder.is_dir():
            raise UserError(f"--watch-folder {folder}: no such folder; make it, or leave it out")
    if given.dcgm not in ("auto", "off") and not given.dcgm.startswith(("http://", "https://")):
        raise UserError(f"--dcgm {given.dcgm}: give the URL of a dcgm-exporter's metrics, auto or off")
    of_devices = [f"--inject {fault}" for fault in faults if fault.is_of_a_device]
    if given.replay is not None:
        of_devices.append(f"--replay {given.replay}")
        if not given.replay.is_file():
            raise UserError(f"--replay {given.replay}: no such file; give a timeline of faults")
    if of_devices and all(machine.program_problem(compiler) for compiler in COMPILERS):
        raise UserError(
            f"{of_devices[0]}: this needs a fake driver, which is built when the job starts: "
            f"install a C compiler ({', '.join(COMPILERS)})"
        )


def _master_port(given: GivenOptions, nnodes: int, machine: MachineFacts) -> int:
    if given.master_port is None and nnodes == 1:
        return machine.free_port()
    port = DEFAULT_MASTER_PORT if given.master_port is None else given.master_port
    _check_port("--master-port", port)
    if given.node_rank == 0 and not machine.port_is_free(port):
        advice = "give another" if nnodes > 1 else "give another, or none to have a free one chosen"
        raise UserError(f"--master-port {port} is in use on this machine: {advice}")
    return port


def _controller_port(given: GivenOptions, nnodes: int) -> int:
    if given.controller_port is None and nnodes == 1:
        return 0
    port = DEFAULT_CONTROLLER_PORT if given.controller_port is None else given.controller_port
    _check_port("--controller-port", port)
    return port


def _leads_first(node_rank: int, controllers: Sequence[tuple[str, int]]) -> bool:
    return not controllers or (node_rank == 0 and len(controllers) > 1)


def _metrics(text: str | None) -> tuple[str, int] | None:
    if text is None:
        return None
    found = re.fullmatch(r"(?:(?:\[([^\]]+)\]|([^:\[\]]+)):)?(\d{1,5})", text)
    if found is None:
        raise UserError(f"--metrics-port {text}: give a port, or HOST:PORT as in 0.0.0.0:{DEFAULT_METRICS_PORT}")
    port = int(found[3])
    for each in (port, port + AGENT_METRICS_OFFSET):
        _check_port("--metrics-port", each)
    return found[1] or found[2] or LOOPBACK, port


def _notify(given: GivenOptions) -> NotifyTarget | None:
    if given.notify is None:
        return None
    if not given.notify.startswith(("http://", "https://")):
        raise UserError(f"--notify {given.notify}: give the URL that messages are posted to, as in https://host/path")
    kinds = [word.strip() for word in (given.notify_on or ",".join(k.value for k in NoticeKind)).split(",")]
    if unknown := [word for word in kinds if word not in {k.value for k in NoticeKind}]:
        known = ", ".join(k.value for k in NoticeKind)
        raise UserError(f"--notify-on {unknown[0]}: there is no such kind; give some of {known}, with commas")
    if given.notify_format not in {form.value for form in BodyForm}:
        raise UserError(f"--notify-format {given.notify_format}: give json or slack")
    template = ""
    if given.notify_template is not None:
        try:
            template = given.notify_template.read_text()
        except (OSError, UnicodeDecodeError) as e:
            raise UserError(f"--notify-template {given.notify_template}: {e}") from e
    return NotifyTarget(given.notify, tuple(map(NoticeKind, kinds)), BodyForm(given.notify_format), template)


def _controllers(given: GivenOptions, nnodes: int) -> tuple[tuple[str, int], ...]:
    if given.controller:
        return tuple(parse_address("--controller", text) for text in given.controller.split(","))
    if nnodes == 1 or given.node_rank == 0 or given.master_addr is None:
        return ()
    return ((given.master_addr, given.controller_port or DEFAULT_CONTROLLER_PORT),)


def _check_port(option: str, port: int) -> None:
    if not 1 <= port <= 65535:
        raise UserError(f"{option} {port}: a port is a number from 1 to 65535")


def parse_address(option: str, text: str) -> tuple[str, int]:
    """`HOST:PORT`, `HOST` or `[IPv6]:PORT` -> host and port. Raises UserError."""
    match = re.fullmatch(r"(?:\[([^\]]+)\]|([^:\[\]]+))(?::(\d{1,5}))?", text)
    if match is None:
        raise UserError(f"{option} {text}: give HOST:PORT, as in node0:{DEFAULT_CONTROLLER_PORT}")
    port = int(match[3]) if match[3] else DEFAULT_CONTROLLER_PORT
    _check_port(option, port)
    return match[1] or match[2], port


def parse_streams(option: str, text: str, nproc: int) -> tuple[int, ...]:
    """torchrun's notation (`3`, or `0:1,1:2` by local rank) -> one of 0..3 for each local rank. Raises UserError."""
    if re.fullmatch(r"[0-3]", text):
        return (int(text),) * nproc
    if not re.fullmatch(r"\d+:[0-3](,\d+:[0-3])*", text):
        raise UserError(
            f"{option} {text}: give 0 (none), 1 (stdout), 2 (stderr) or 3 (both), "
            "for all or by local rank as in 0:3,1:2"
        )
    streams = [0] * nproc
    for part in text.split(","):
        local_rank, _, value = part.partition(":")
        if int(local_rank) >= nproc:
            raise UserError(f"{option} {text}: there is no local rank {local_rank}; this machine has 0 to {nproc - 1}")
        streams[int(local_rank)] = int(value)
    return tuple(streams)


def _secret(nnodes: int, environment: Mapping[str, str]) -> bytes | None:
    if nnodes == 1:
        return None
    text = environment.get(ENV_SECRET, "").strip()
    if len(text) < MINIMUM_SECRET_CHARACTERS:
        what = "is too short" if text else "is not set"
        raise UserError(
            f"a job on several machines needs a secret that they share, and {ENV_SECRET} {what}: make one of at least "
            f"{MINIMUM_SECRET_CHARACTERS} characters (as with `openssl rand -hex 32`) and set it on every machine"
        )
    return text.encode()
