"""The options that commands about a whole run have in common: `GivenOptions` declares them, typer reads them from there."""

from __future__ import annotations

import dataclasses
import inspect
import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, get_args, get_origin, get_type_hints

import typer

from torchrelay.cli.command_line import arguments as a
from torchrelay.protocol.journals.kept import COPIES_AS_NEEDED
from torchrelay.protocol.names import RESPAWN_LIMIT_DEFAULT
from torchrelay.protocol.options.cost_limit import MOST_SHARE_PERCENT
from torchrelay.protocol.security.transfer_protection import INTEGRITY

MAX_RESTARTS = 3
"""Unless --max-restarts is given."""
LEASE = "60s"
MACHINE_WAIT = "10m"
CHECKS_WAIT = "60s"
"""For the checks of other machines, unless --wait is given."""
REHEARSE_EVERY = "30m"
HANG_TIMEOUT = "0"
RESPAWN_LIMIT = RESPAWN_LIMIT_DEFAULT
JIT_DIR = Path("torchrelay-jit")
_OF_THE_SCHEDULER = "node_rank"
"""Where it is not given, the scheduler says it."""
_NOT_AGAIN = ("script", "script_args", "resume", "inject", "replay")
"""Not repeated when a job goes on: the steps of faults may be over, and one that never fires fails the run."""


@dataclass(frozen=True)
class GivenOptions:
    """The command line of `run` and `doctor`, unchecked. Order and defaults are those of the help. None: not given."""

    script: a.Script
    script_args: a.ScriptArgs = ()
    nproc_per_node: a.NprocPerNode = "1"
    nnodes: a.Nnodes = "1"
    node_rank: a.NodeRank = 0
    master_addr: a.MasterAddr = None
    master_port: a.MasterPort = None
    module: a.Module = False
    no_python: a.NoPython = False
    standalone: a.Standalone = False
    redirects: a.Redirects = "0"
    tee: a.Tee = "0"
    log_dir: a.LogDir = None
    role: a.Role = "default"
    max_restarts: a.MaxRestarts = None
    spares: a.Spares = 0
    refill: a.Refill = True
    respawn_limit: a.RespawnLimit = RESPAWN_LIMIT
    buddy_every: a.BuddyEvery = COPIES_AS_NEEDED
    buddy_sync: a.BuddySync = False
    rehearse_every: a.RehearseEvery = REHEARSE_EVERY
    hang_timeout: a.HangTimeout = HANG_TIMEOUT
    lease: a.Lease = LEASE
    machine_wait: a.MachineWait = MACHINE_WAIT
    cost_limit_percent: a.CostLimit = MOST_SHARE_PERCENT
    transfer_encryption: a.TransferEncryption = INTEGRITY
    watch: a.Watch = ()
    inject: a.Inject = ()
    resume: a.Resume = None
    jit_dirs: a.JitDir = (JIT_DIR,)
    incident_journals: a.IncidentJournals = False
    health_policy: a.HealthPolicy = None
    health_observe: a.Observe = False
    watch_folders: a.WatchFolder = ()
    node_notices: a.NodeNotice = ()
    dcgm: a.Dcgm = "auto"
    replay: a.Replay = None
    controller: a.Controller = None
    controller_port: a.ControllerPort = None
    metrics_port: a.MetricsPort = None
    events: a.Events = None
    json_summary: a.JsonSummary = False
    json_file: a.JsonFile = None
    quiet: a.Quiet = False
    verbose: a.Verbose = False
    log_format: a.LogForm = "text"
    name: a.JobName = None
    notify: a.Notify = None
    notify_on: a.NotifyOn = None
    notify_format: a.NotifyFormat = "json"
    notify_template: a.NotifyTemplate = None


def takes_options_of_a_run(text: str, **defaults: Any) -> Callable[[Callable[..., int]], Callable[..., int]]:
    """Make a command of a function that takes what was given, and options of its own by their names.

    `text`: its help. `defaults`: of options of a run, where they differ.
    """

    def as_command(act: Callable[..., int]) -> Callable[..., int]:
        own = list(inspect.signature(act, eval_str=True).parameters.values())[1:]

        def command(**words: Any) -> int:
            of_its_own = {each.name: words.pop(each.name) for each in own}
            return act(_given(words), **of_its_own)

        parameters = [_parameter(field, hint, defaults) for field, hint in _declared()] + own
        command.__annotations__ = {p.name: p.annotation for p in parameters} | {"return": int}
        command.__name__ = act.__name__
        command.__doc__ = text
        signature = inspect.Signature(parameters, return_annotation=int)
        command.__signature__ = signature  # type: ignore[attr-defined]  # functions may have one
        return command

    return as_command


def flags_to_go_on(given: GivenOptions) -> list[str]:
    """Return the words of a command line that says the same, but for the script, the checkpoint and faults to make."""
    words: list[str] = []
    for field, hint in _declared():
        value = getattr(given, field.name)
        if field.name in _NOT_AGAIN or value == field.default:
            continue
        on, off = _flags(field.name, hint)
        if isinstance(value, bool):
            words.append(on if value else off)
        else:
            words += [word for each in (value if isinstance(value, tuple) else (value,)) for word in (on, str(each))]
    return words


def own_node_rank(given: int | None, nnodes: str, environment: Mapping[str, str]) -> int:
    """Return this machine's number: the given one, else the one that Slurm has for this node among the nodes of its step.

    Slurm's number counts only if the step has as many nodes as the job has machines.
    """
    if given is not None or nnodes == "1":
        return given or 0
    number, nodes = (environment.get(name, "") for name in ("SLURM_NODEID", "SLURM_NNODES"))
    nodes = environment.get("SLURM_STEP_NUM_NODES", nodes)
    return int(number) if number.isdecimal() and nodes == nnodes else 0


def _declared() -> Iterator[tuple[dataclasses.Field[Any], Any]]:
    hints = get_type_hints(GivenOptions, include_extras=True)
    return ((field, hints[field.name]) for field in dataclasses.fields(GivenOptions))


def _parameter(field: dataclasses.Field[Any], hint: Any, defaults: dict[str, Any]) -> inspect.Parameter:
    base, *declaration = get_args(hint)
    default = inspect.Parameter.empty if field.default is dataclasses.MISSING else field.default
    if get_origin(base) is tuple:  # typer knows lists alone for what may be repeated
        base = list[str] | None if get_args(base)[0] is str else list[Path] | None
        default = None
    elif field.name == _OF_THE_SCHEDULER:
        base = int | None
        default = None
    return inspect.Parameter(
        field.name,
        inspect.Parameter.POSITIONAL_OR_KEYWORD,
        default=defaults.get(field.name, default),
        annotation=Annotated[(base, *declaration)],
    )


def _given(words: dict[str, Any]) -> GivenOptions:
    for field, hint in _declared():
        if get_origin(get_args(hint)[0]) is tuple:
            words[field.name] = tuple(words[field.name] or ()) or field.default
    words[_OF_THE_SCHEDULER] = own_node_rank(words[_OF_THE_SCHEDULER], words["nnodes"], os.environ)
    return GivenOptions(**words)


def _flags(name: str, hint: Any) -> tuple[str, str]:
    """Return how an option is switched on or given, and how it is switched off, if it can be."""
    option: typer.models.OptionInfo = get_args(hint)[1]
    spelled = [w for w in (option.default, *(option.param_decls or ())) if isinstance(w, str) and w.startswith("-")]
    on, _, off = (spelled[0] if spelled else f"--{name.replace('_', '-')}").partition("/")
    return max([on, *spelled[1:]], key=len) if not off else on, off
