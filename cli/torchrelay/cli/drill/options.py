"""What `torchrelay drill` was asked to do: the command line, and the one check of all of it before anything starts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from torchrelay.cli.command_line import checked
from torchrelay.cli.command_line.given import GivenOptions
from torchrelay.cli.command_line.machine_facts import MachineFacts
from torchrelay.cli.drill.command import DrillOptions
from torchrelay.cli.drill.practice import LEAST_STEPS
from torchrelay.cli.drill.program import DrilledProgram
from torchrelay.cli.struck_runs.cells import KINDS, PHASES, RUNGS
from torchrelay.protocol.errors import UserError


@dataclass(frozen=True)
class GivenDrill:
    """The command line, unchecked. None: not given."""

    script: str
    script_args: tuple[str, ...] = ()
    nproc_per_node: str = "2"
    module: bool = False
    faults: int = 12
    steps: int = 40
    seed: int = 0
    phases: str = ""
    kinds: str = ""
    together: int = 4
    workdir: Path | None = None
    timeout_s: float = 600.0
    buddy_every: int = 0
    buddy_sync: bool = False
    json_file: Path | None = None
    picture: Path | None = None
    keep: Path | None = None


def check(
    given: GivenDrill, machine: MachineFacts, environment: Mapping[str, str], command: tuple[str, ...]
) -> DrillOptions:
    """Check the command line, and return the options of a drill.

    Raises UserError, with what to do, for anything that could not work.
    """
    folder = (given.workdir or Path.cwd()).absolute()
    if not folder.is_dir():
        raise UserError(f"--workdir {given.workdir}: there is no such folder")
    as_run = GivenOptions(
        script=given.script if given.module else str(folder / given.script),
        nproc_per_node=given.nproc_per_node,
        module=given.module,
        buddy_every=given.buddy_every,
        buddy_sync=given.buddy_sync,
    )
    ranks = checked.check(as_run, machine, environment).nproc_per_node
    if ranks < 2:
        raise UserError("--nproc-per-node: a lost rank is restored from another one: give 2 or more")
    if 0 < given.steps < LEAST_STEPS:
        raise UserError(f"--steps {given.steps}: give {LEAST_STEPS} or more, or 0 for the whole script")
    buddies = (f"--buddy-every={given.buddy_every}",) if given.buddy_every else ()
    program = DrilledProgram(
        script=given.script,
        args=given.script_args,
        module=given.module,
        ranks=ranks,
        folder=folder,
        relay_options=(*buddies, *(("--buddy-sync",) if given.buddy_sync else ())),
    )
    return DrillOptions(
        program=program,
        command=command,
        faults=given.faults,
        steps=given.steps,
        seed=given.seed,
        phases=_listed("--phases", given.phases, PHASES),
        kinds=_listed("--kinds", given.kinds, tuple(kind for kind in KINDS if kind not in RUNGS)),
        together=given.together,
        timeout_s=given.timeout_s,
        json_file=_absolute(given.json_file),
        picture_file=_absolute(given.picture),
        keep=_absolute(given.keep),
    )


def _absolute(path: Path | None) -> Path | None:
    return None if path is None else path.absolute()


def _listed(option: str, text: str, known: tuple[str, ...]) -> tuple[str, ...]:
    listed = tuple(filter(None, text.split(",")))
    unknown = [name for name in listed if name not in known]
    if unknown:
        raise UserError(f"{option} {unknown[0]}: use some of {', '.join(known)}")
    return listed
