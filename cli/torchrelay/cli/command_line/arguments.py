"""The options of `torchrelay run`, as typer declares them. What torchrun has too means the same here."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from torchrelay.cli.command_line.completion import kept_runs, running_jobs

_TORCHRUN = "As torchrun has them"
_TAKES_OVER = "Who takes over"
_COPIES = "Copies and checkpoints"
_FAULTS = "Faults of devices and numbers, and to order"
_MACHINES = "Several machines"
_OUTPUT = "What is told and kept"

MaxRestarts = Annotated[
    int | None,
    typer.Option(
        metavar="N",
        help="How often all processes may be started anew where no rank can take over: from a just-in-time checkpoint, at the "
        "same step, else from the script's beginning. Default: 3, and for a script that fails by itself 0.",
        rich_help_panel=_TORCHRUN,
    ),
]

Script = Annotated[str, typer.Argument(metavar="SCRIPT", help="Training script (or module with -m).")]
ScriptWords = Annotated[list[str] | None, typer.Argument(metavar="ARGS", help="Its arguments.")]
ScriptArgs = Annotated[tuple[str, ...], typer.Argument(metavar="ARGS", help="Its arguments.")]

NprocPerNode = Annotated[
    str,
    typer.Option(
        envvar="PET_NPROC_PER_NODE",
        help="Ranks on this machine: a number, auto, cpu or gpu.",
        rich_help_panel=_TORCHRUN,
    ),
]
Nnodes = Annotated[str, typer.Option(envvar="PET_NNODES", help="Number of machines.", rich_help_panel=_TORCHRUN)]
NodeRank = Annotated[
    int,
    typer.Option(
        envvar="PET_NODE_RANK",
        help="Which of the machines this is. Default: as Slurm says, or 0.",
        rich_help_panel=_TORCHRUN,
    ),
]
MasterAddr = Annotated[
    str | None,
    typer.Option(envvar="PET_MASTER_ADDR", help="Address of the machine with node rank 0.", rich_help_panel=_TORCHRUN),
]
MasterPort = Annotated[
    int | None,
    typer.Option(
        envvar="PET_MASTER_PORT",
        help="Port on that machine. Default: any free one; 29500 with several machines.",
        rich_help_panel=_TORCHRUN,
    ),
]
Module = Annotated[bool, typer.Option("-m", "--module", help="SCRIPT is a module.", rich_help_panel=_TORCHRUN)]
NoPython = Annotated[
    bool, typer.Option("--no-python", help="SCRIPT is a program, executed as it is.", rich_help_panel=_TORCHRUN)
]
Standalone = Annotated[
    bool, typer.Option("--standalone", help="Accepted: one machine is the default.", rich_help_panel=_TORCHRUN)
]
Redirects = Annotated[
    str,
    typer.Option(
        "-r",
        "--redirects",
        help="Output into files: 0, 1 (stdout), 2 (stderr), 3, or by local rank 0:3,1:1.",
        rich_help_panel=_TORCHRUN,
    ),
]
Tee = Annotated[
    str,
    typer.Option(
        "-t",
        "--tee",
        help="As --redirects, and onto the console with the rank before each line.",
        rich_help_panel=_TORCHRUN,
    ),
]
LogDir = Annotated[Path | None, typer.Option(help="Folder of these files.", rich_help_panel=_TORCHRUN)]
Role = Annotated[str, typer.Option(help="Name before the rank in teed lines.", rich_help_panel=_TORCHRUN)]

Spares = Annotated[int, typer.Option(metavar="N", help="Spare processes on this machine.", rich_help_panel=_TAKES_OVER)]
Refill = Annotated[
    bool,
    typer.Option(
        "--refill/--no-refill",
        help="Make new spares, at the lowest priority, where there are fewer than --spares.",
        rich_help_panel=_TAKES_OVER,
    ),
]
RespawnLimit = Annotated[
    int,
    typer.Option(
        metavar="N",
        help="How often within an hour a process is started in the place of a lost rank's, where no spare takes over; 0: never.",
        rich_help_panel=_TAKES_OVER,
    ),
]
Watch = Annotated[
    tuple[str, ...],
    typer.Option(
        metavar="NUMBER",
        help="Watch loss, grad-norm or replicas, as in grad-norm:action=retry,over=10. May be repeated.",
        rich_help_panel=_FAULTS,
    ),
]
BuddyEvery = Annotated[
    int,
    typer.Option(
        metavar="K",
        help="Copy each rank's state into host memory every K steps: all go back to it where nobody else holds it. 0: never. "
        "Unless given, only where some rank's state is nobody else's, as often as that costs little.",
        show_default=False,
        rich_help_panel=_COPIES,
    ),
]
HangTimeout = Annotated[
    str,
    typer.Option(
        metavar="TIME",
        help="How long the others wait for a rank that hangs and that nobody can take over, until the job ends: 90s, 30m, 2h. "
        "0: the timeout of the script's process group.",
        rich_help_panel=_TAKES_OVER,
    ),
]
MachineWait = Annotated[
    str,
    typer.Option(
        metavar="TIME",
        help="How long a job that is started anew waits for a machine that is missing (90s, 30m, 2h); then it goes "
        "on without, if the others have places for its ranks. 0: without end.",
        rich_help_panel=_MACHINES,
    ),
]
Lease = Annotated[
    str,
    typer.Option(
        metavar="TIME",
        help="How long a machine goes on that does not hear of whoever leads the job, as 60s.",
        rich_help_panel=_MACHINES,
    ),
]
ChecksWait = Annotated[
    str,
    typer.Option(
        "--wait",
        metavar="TIME",
        help="Several machines: how long this waits for the checks of the others (90s, 30m, 2h); 0: not at all.",
        rich_help_panel=_MACHINES,
    ),
]
RehearseEvery = Annotated[
    str,
    typer.Option(
        metavar="TIME",
        help="A spare tries every so often whether it could take over (90s, 30m, 2h); 0: never.",
        rich_help_panel=_TAKES_OVER,
    ),
]
CostLimit = Annotated[
    float,
    typer.Option(
        "--cost-limit",
        metavar="PERCENT",
        help="Of a step: where watching the script's state takes more for good, training goes on without protection; 0: never.",
        rich_help_panel=_TAKES_OVER,
    ),
]
TransferEncryption = Annotated[
    str,
    typer.Option(
        metavar="HOW",
        help="Tensors on their way to another machine: `integrity`, so that nobody changes them; `full`, so that nobody reads them "
        "either; `off`: whoever is on the network can change numbers in them.",
        rich_help_panel=_COPIES,
    ),
]
BuddySync = Annotated[
    bool,
    typer.Option(
        "--buddy-sync",
        help="With --buddy-every: no rank begins the next step before the copies of all ranks are whole.",
        rich_help_panel=_COPIES,
    ),
]
Inject = Annotated[
    tuple[str, ...],
    typer.Option(
        metavar="FAULT",
        help="Make a fault happen, as in kill:rank=1,step=30,phase=backward. May be repeated.",
        rich_help_panel=_FAULTS,
    ),
]
Resume = Annotated[
    Path | None, typer.Option(metavar="DIR", help="Go on from a just-in-time checkpoint.", rich_help_panel=_COPIES)
]
JitDir = Annotated[
    tuple[Path, ...],
    typer.Option(
        "--jit-dir",
        metavar="DIR",
        help="Where a just-in-time checkpoint goes. Default: torchrelay-jit. Given again: where it goes if that cannot be written.",
        rich_help_panel=_COPIES,
    ),
]
IncidentJournals = Annotated[
    bool,
    typer.Option(
        "--incident-journals",
        help="Keep journals, with what the script's variables hold, where a promised migration fails.",
        rich_help_panel=_OUTPUT,
    ),
]
HealthPolicy = Annotated[
    Path | None,
    typer.Option(metavar="FILE", help="What is done about faults of devices, in YAML.", rich_help_panel=_FAULTS),
]
Observe = Annotated[
    bool,
    typer.Option(
        "--observe", help="Say what would be done about faults of devices; do nothing.", rich_help_panel=_FAULTS
    ),
]
Replay = Annotated[
    Path | None,
    typer.Option(metavar="FILE", help="Play a timeline of device faults on a fake machine.", rich_help_panel=_FAULTS),
]
WatchFolder = Annotated[
    tuple[Path, ...],
    typer.Option(
        "--watch-folder",
        metavar="DIR",
        help="Checkpoints or flight recorder dumps to watch. May be repeated.",
        rich_help_panel=_FAULTS,
    ),
]
NodeNotice = Annotated[
    tuple[Path, ...],
    typer.Option(
        "--node-notice",
        metavar="FILE",
        help="While this file is there, this machine has to go. May be repeated.",
        rich_help_panel=_FAULTS,
    ),
]
Dcgm = Annotated[
    str,
    typer.Option(
        metavar="URL", help="Metrics of a dcgm-exporter, auto (beside NVIDIA GPUs) or off.", rich_help_panel=_FAULTS
    ),
]
Controller = Annotated[
    str | None,
    typer.Option(
        metavar="HOST:PORT,...",
        help="Where to look for the controller. Default: at --master-addr.",
        rich_help_panel=_MACHINES,
    ),
]
ControllerPort = Annotated[
    int | None,
    typer.Option(
        metavar="PORT",
        help="Port of a controller that is started here. Default: 29476.",
        rich_help_panel=_MACHINES,
    ),
]

MetricsPort = Annotated[
    str | None,
    typer.Option(
        metavar="[HOST:]PORT",
        help="Answer Prometheus: the controller there, the agent one port above. Default host: 127.0.0.1.",
        rich_help_panel=_OUTPUT,
    ),
]
Events = Annotated[
    Path | None, typer.Option(metavar="FILE", help="Write every event as a line of JSON.", rich_help_panel=_OUTPUT)
]
JsonSummary = Annotated[
    bool, typer.Option("--json", help="Print the summary as JSON on stdout.", rich_help_panel=_OUTPUT)
]
JsonFile = Annotated[
    Path | None, typer.Option("--json-file", metavar="FILE", help="Write the summary as JSON.", rich_help_panel=_OUTPUT)
]
Quiet = Annotated[bool, typer.Option("--quiet", help="Say only what went wrong.", rich_help_panel=_OUTPUT)]
LogForm = Annotated[
    str,
    typer.Option(
        "--log-format",
        metavar="FORM",
        help="Lines on stderr: text, or json with one id of the run in each, also those of controller, agent and ranks.",
        rich_help_panel=_OUTPUT,
    ),
]
Verbose = Annotated[
    bool,
    typer.Option(
        "--verbose", "-v", help="Say each decision, phase and new spare, too, with its reason.", rich_help_panel=_OUTPUT
    ),
]

JobName = Annotated[
    str | None,
    typer.Option(
        "--name",
        metavar="NAME",
        help="What commands and lists call this job. Default: the script's.",
        rich_help_panel=_OUTPUT,
    ),
]

Notify = Annotated[
    str | None,
    typer.Option(
        metavar="URL",
        help="Post a message there about each move, a lack of spares, and the end. TORCHRELAY_NOTIFY says the same.",
        rich_help_panel=_OUTPUT,
    ),
]
NotifyOn = Annotated[
    str | None,
    typer.Option(
        metavar="LIST",
        help="Only about these: migrated, not-migrated, spares-low, unprotected, needs-person, restarted, ended.",
        rich_help_panel=_OUTPUT,
    ),
]
NotifyFormat = Annotated[
    str, typer.Option(metavar="FORM", help="json or slack: what is posted.", rich_help_panel=_OUTPUT)
]
NotifyTemplate = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE", help="The body, with $text, $hint, $kind, $job, $name and $host in it.", rich_help_panel=_OUTPUT
    ),
]

Job = Annotated[
    str | None,
    typer.Argument(
        metavar="JOB", help="Which job, by its id or name, if several run here.", autocompletion=running_jobs
    ),
]
KeptRunId = Annotated[
    str | None,
    typer.Option(
        "--run", metavar="ID", help="Which run, by its id or name, running or over.", autocompletion=kept_runs
    ),
]
Run = Annotated[
    str | None,
    typer.Argument(
        metavar="RUN", help="Its id or name, running or over. Default: the newest.", autocompletion=kept_runs
    ),
]
RunId = Annotated[
    str | None,
    typer.Option(
        "--run", metavar="ID", help="Which job, by its id or name, if several run here.", autocompletion=running_jobs
    ),
]
Reason = Annotated[str, typer.Option("--reason", help="Why; kept in the events and shown by `status`.")]
NoWait = Annotated[bool, typer.Option("--no-wait", help="End as soon as it is accepted.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print it as JSON.")]
CheckpointTime = Annotated[
    str, typer.Option(metavar="TIME", help="For the comparison: time between two checkpoints, as 30m.")
]
RestartTime = Annotated[
    str, typer.Option(metavar="TIME", help="For the comparison: how long a restart of all ranks takes, as 5m.")
]
Form = Annotated[str, typer.Option("--format", metavar="FORM", help="text, markdown or json.")]
Picture = Annotated[Path | None, typer.Option("--picture", metavar="FILE", help="Draw it, too, as two bars.")]
