"""The commands that are given a training script: to run it, and to look at what torchrelay can do for it."""

from __future__ import annotations

import asyncio
import dataclasses
import os
import sys
from pathlib import Path
from typing import Annotated

import typer

from torchrelay.cli import machine
from torchrelay.cli.command_line import arguments as a
from torchrelay.cli.command_line import checked
from torchrelay.cli.command_line.given import CHECKS_WAIT, GivenOptions, takes_options_of_a_run
from torchrelay.cli.command_line.times import time_s

scripts = typer.Typer()


def _normalize(option: str) -> str:
    """Replace underscores in an option by hyphens: torchrun takes both spellings of every option."""
    return option.replace("_", "-")


_OF_A_SCRIPT = {"allow_interspersed_args": False, "token_normalize_func": _normalize}
_EPILOG = "Everything after the script belongs to the script."


@scripts.command(context_settings=_OF_A_SCRIPT, epilog=_EPILOG)
@takes_options_of_a_run(
    "Run a training script, protected. A drop-in for torchrun.\n\n"
    "Example: torchrelay run --nproc-per-node 4 --spares 1 train.py --epochs 3"
)
def run(given: GivenOptions) -> int:
    return _launch(given)


def _launch(given: GivenOptions) -> int:
    options = checked.check(given, machine.LocalMachine(), os.environ)
    from torchrelay.cli.run import launch

    return asyncio.run(launch.launch(options, tuple(sys.argv[1:])))


@scripts.command(context_settings=_OF_A_SCRIPT, epilog=_EPILOG)
@takes_options_of_a_run(
    "Look at this machine, and at the command line of a run if there is one, for what would go wrong. Starts no training.\n\n"
    "Exit code: 0 all is well, or nothing worse than warnings; 1 something is wrong.\n\n"
    "Example: torchrelay doctor --nproc-per-node 4 --spares 1 train.py",
    script="",
)
def doctor(given: GivenOptions, wait: a.ChecksWait = CHECKS_WAIT) -> int:
    from torchrelay.cli.commands import doctor as command

    return command.doctor(given, os.environ, time_s("--wait", wait))


@scripts.command(context_settings=_OF_A_SCRIPT, epilog=_EPILOG)
def check(
    script: a.Script,
    script_args: a.ScriptWords = None,
    nproc_per_node: a.NprocPerNode = "1",
    master_port: a.MasterPort = None,
    module: a.Module = False,
    no_python: a.NoPython = False,
    standalone: a.Standalone = False,
    steps: Annotated[int, typer.Option(min=2, help="After how many optimizer steps the report is made.")] = 5,
    batches: Annotated[
        int,
        typer.Option(metavar="N", min=0, help="Cut data loaders to N batches, so that an epoch's end is seen; 0: not."),
    ] = 8,
    timeout_s: Annotated[float, typer.Option("--timeout", min=1.0, help="Seconds that this may take.")] = 600.0,
    buddy_every: a.BuddyEvery = 0,
    buddy_sync: a.BuddySync = False,
    events: a.Events = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the report as JSON.")] = False,
) -> int:
    """Say what torchrelay can protect of a training script: runs its set-up, a few steps and a cut epoch's end.

    Exit code: 0 protected, 3 partly, 4 not protected, 1 the script failed, 2 the command line cannot work.

    Example: torchrelay check --nproc-per-node 2 train.py --epochs 3
    """
    given = GivenOptions(
        script=script,
        script_args=tuple(script_args or ()),
        nproc_per_node=nproc_per_node,
        master_port=master_port,
        module=module,
        no_python=no_python,
        buddy_every=buddy_every,
        buddy_sync=buddy_sync,
        events=events,
    )
    options = checked.check(given, machine.LocalMachine(), os.environ)
    options = dataclasses.replace(options, check_steps=steps, check_batches=batches)
    from torchrelay.cli.commands import check as command

    return asyncio.run(command.check(options, tuple(sys.argv[1:]), timeout_s, as_json))


@scripts.command(context_settings=_OF_A_SCRIPT, epilog=_EPILOG)
def drill(
    script: a.Script,
    script_args: a.ScriptWords = None,
    nproc_per_node: a.NprocPerNode = "2",
    module: a.Module = False,
    faults: Annotated[int, typer.Option(metavar="N", min=1, help="How many faults strike the script.")] = 12,
    steps: Annotated[
        int, typer.Option(metavar="N", min=0, help="End each run after N optimizer steps; 0: at the script's own end.")
    ] = 40,
    seed: Annotated[int, typer.Option(help="Of the choice of ranks, steps and phases.")] = 0,
    phases: Annotated[str, typer.Option(metavar="LIST", help="Only these phases of a step, as in data,backward.")] = "",
    kinds: Annotated[str, typer.Option(metavar="LIST", help="Only these kinds of faults, as in kill,planned.")] = "",
    together: Annotated[int, typer.Option(metavar="N", min=1, help="Faults that may share a run.")] = 4,
    workdir: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Working folder of the script, copied for each run. Default: this one."),
    ] = None,
    timeout_s: Annotated[float, typer.Option("--timeout", min=1.0, help="Seconds for a run without faults.")] = 600.0,
    buddy_every: a.BuddyEvery = 0,
    buddy_sync: a.BuddySync = False,
    json_file: Annotated[Path | None, typer.Option("--json", metavar="FILE", help="Write the result as JSON.")] = None,
    picture: Annotated[Path | None, typer.Option(metavar="FILE", help="Write the table as a PNG.")] = None,
    keep: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Keep events and output of what was not identical.")
    ] = None,
) -> int:
    """Strike a training script with faults, and say whether it computes bitwise the same: do this before you rely on it.

    Exit code: 0 all identical, 3 same numbers after more steps were done again, 4 some refused as announced, 5 a promise was not
    kept, 6 wrong numbers, 7 the script is not deterministic, 8 nothing struck, 1 it does not run with torchrun, 2 the command
    line cannot work.

    Example: torchrelay drill --nproc-per-node 2 --faults 24 train.py --epochs 3
    """
    from torchrelay.cli.drill import options as drill_options

    given = drill_options.GivenDrill(
        script=script,
        script_args=tuple(script_args or ()),
        nproc_per_node=nproc_per_node,
        module=module,
        faults=faults,
        steps=steps,
        seed=seed,
        phases=phases,
        kinds=kinds,
        together=together,
        workdir=workdir,
        timeout_s=timeout_s,
        buddy_every=buddy_every,
        buddy_sync=buddy_sync,
        json_file=json_file,
        picture=picture,
        keep=keep,
    )
    checked = drill_options.check(given, machine.LocalMachine(), os.environ, tuple(sys.argv[1:]))
    from torchrelay.cli.drill import command

    return command.drill(checked)
