"""The one list of checks: `torchrelay doctor` makes all of them, `torchrelay run` those that take no time."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path

from torchrelay.cli.preflight import decide
from torchrelay.cli.preflight.facts import WorkerFacts
from torchrelay.cli.preflight.finding import Finding, FindingMark
from torchrelay.cli.preflight.meeting import MeetingPlace
from torchrelay.cli.preflight.probe import Probe
from torchrelay.protocol.errors import UserError
from torchrelay.protocol.names import AGENT_METRICS_OFFSET

DOCS = "docs/cli.md"


class Group(str, Enum):
    SOFTWARE = "Python and torch"
    MACHINE = "this machine"
    DEVICES = "devices"
    JOB = "this job"
    MACHINES = "the machines of this job"


@dataclass(frozen=True)
class Subject:
    """The job that checks are made for, as far as they ask. `runs_python`: its ranks are Python processes that we start."""

    state_dir: Path
    jit_dirs: tuple[Path, ...]
    processes: int = 1
    world_size: int = 1
    nnodes: int = 1
    runs_python: bool = True
    addresses: tuple[str, ...] = ()
    """Of other machines of the job."""
    controller_port: int = 0
    """Where other machines look for this one's controller; 0: they look elsewhere."""
    metrics: tuple[str, int] | None = None
    """Where Prometheus is to be answered: by the controller, and by the agent one port above."""
    meeting: MeetingPlace | None = None
    """With the other machines, if there are any."""
    problem: str = ""
    """What is wrong with its command line, all in words; `command` is what it would run."""
    command: str = ""


Look = Callable[[Probe, Subject], Iterable[Finding]]


@dataclass(frozen=True)
class Check:
    """One check. `look` gives a finding for each thing that it looks at. `anchor`: in docs/cli.md."""

    name: str
    group: Group
    anchor: str
    look: Look = field(repr=False)
    in_run: bool = False
    """Whether `torchrelay run` makes it, too: it takes milliseconds."""


def _worker(judge: Callable[[WorkerFacts], Finding]) -> Look:
    """Make a check of a process like a rank's. If that cannot be started, only one check says so."""

    def look(probe: Probe, job: Subject) -> Iterable[Finding]:
        if job.runs_python and (judge is decide.python or not (probe.worker.problem or _hides(probe, judge))):
            yield judge(probe.worker)

    return look


def _hides(probe: Probe, judge: Callable[[WorkerFacts], Finding]) -> bool:
    """Return whether the check can say nothing, since it is about torch and torch is missing."""
    return bool(probe.worker.torch_problem) and judge in (decide.backend, decide.shim)


def _command(probe: Probe, job: Subject) -> Iterable[Finding]:
    if job.command or job.problem:
        yield decide.command_line(job.problem, job.command)


def _controller_port(probe: Probe, job: Subject) -> Iterable[Finding]:
    if job.controller_port:
        yield decide.controller_port(job.controller_port, probe.port_holder(job.controller_port))


def _metrics_ports(probe: Probe, job: Subject) -> Iterable[Finding]:
    if job.metrics is not None:
        host, port = job.metrics
        for each in (port, port + AGENT_METRICS_OFFSET):
            yield decide.metrics_port(host, each, probe.listening_problem(host, each))


def _checkpoints(probe: Probe, job: Subject) -> Iterable[Finding]:
    for folder in job.jit_dirs:
        yield decide.checkpoint_folder(probe.folder(folder))


def _machines(probe: Probe, job: Subject) -> Iterable[Finding]:
    if (place := job.meeting) is not None:
        yield from decide.machines(place.addresses, probe.compared(place), place.there)


CHECKS = (
    Check("python", Group.SOFTWARE, "doctor-python", _worker(decide.python)),
    Check("torch", Group.SOFTWARE, "doctor-python", _worker(decide.torch)),
    Check("backend", Group.SOFTWARE, "doctor-python", _worker(decide.backend)),
    Check("sitecustomize", Group.SOFTWARE, "doctor-way-in", _worker(decide.way_in)),
    Check("shim", Group.SOFTWARE, "doctor-way-in", _worker(decide.shim)),
    Check("cache-folder", Group.SOFTWARE, "doctor-folders", lambda p, job: [decide.cache_folder(p.cache_folder())]),
    Check(
        "shared-memory",
        Group.MACHINE,
        "doctor-shared-memory",
        lambda p, job: [decide.shared_memory(p.shared_memory(), job.processes)],
        in_run=True,
    ),
    Check("memory", Group.MACHINE, "doctor-limits", lambda p, job: [decide.memory(p.memory(), job.processes)]),
    Check("open-files", Group.MACHINE, "doctor-limits", lambda p, job: [decide.open_files(p.limits(), job.world_size)]),
    Check("threads", Group.MACHINE, "doctor-limits", lambda p, job: [decide.processes(p.limits(), job.processes)]),
    Check(
        "kernel", Group.MACHINE, "doctor-kernel", lambda p, job: [decide.pidfd(p.has_pidfd(), p.kernel())], in_run=True
    ),
    Check(
        "loopback", Group.MACHINE, "doctor-kernel", lambda p, job: [decide.loopback(p.loopback_problem())], in_run=True
    ),
    Check("clock", Group.MACHINE, "doctor-kernel", lambda p, job: [decide.clock(p.clock(), job.nnodes)]),
    Check("stack-reader", Group.MACHINE, "doctor-kernel", lambda p, job: [decide.reader(p.reader())]),
    Check("gpus", Group.DEVICES, "doctor-devices", lambda p, job: [decide.gpus(p.gpus(), p.worker)]),
    Check("command", Group.JOB, "torchrelay-run", _command),
    Check(
        "state-folder",
        Group.JOB,
        "doctor-folders",
        lambda p, job: [decide.state_folder(p.folder(job.state_dir), p.state_folder_problem(job.state_dir))],
    ),
    Check("jit-dir", Group.JOB, "doctor-folders", _checkpoints, in_run=True),
    Check("controller-port", Group.JOB, "several-machines", _controller_port),
    Check("metrics-port", Group.JOB, "options-for-what-is-told-and-kept", _metrics_ports, in_run=True),
    Check(
        "addresses",
        Group.JOB,
        "several-machines",
        lambda p, job: [decide.address(host, p.address_problem(host)) for host in job.addresses],
    ),
    Check("machines", Group.MACHINES, "what-all-machines-have-to-agree-on", _machines),
)


@dataclass(frozen=True)
class CheckResult:
    check: Check
    finding: Finding


def look(checks: Iterable[Check], probe: Probe, job: Subject) -> list[CheckResult]:
    return [CheckResult(check, finding) for check in checks for finding in check.look(probe, job)]


def before_a_run(probe: Probe, job: Subject) -> list[Finding]:
    """Return the warnings. Raises UserError with everything that would go wrong."""
    found = [each.finding for each in look((c for c in CHECKS if c.in_run), probe, job)]
    if wrong := [f for f in found if f.mark is FindingMark.BAD]:
        raise UserError("\n".join(f"{f.text}: {f.remedy}" for f in wrong))
    return [f for f in found if f.mark is FindingMark.WARNING]
