"""Which job checks are made for: that of a command line, or one as small as can be."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from dataclasses import replace

from torchrelay.cli.command_line.addresses import LOOPBACK
from torchrelay.cli.command_line.checked import check
from torchrelay.cli.command_line.given import GivenOptions
from torchrelay.cli.command_line.machine_facts import MachineFacts
from torchrelay.cli.command_line.options import RunOptions
from torchrelay.cli.folders import folder
from torchrelay.cli.preflight.checks import Subject
from torchrelay.cli.preflight.meeting import meeting_place
from torchrelay.protocol.errors import UserError


def subject(options: RunOptions, environ: Mapping[str, str]) -> Subject:
    """Return what checks need to know of a run on this machine."""
    others = {options.master_addr, options.controller[0] if options.controller else LOOPBACK} - {LOOPBACK}
    return Subject(
        folder.state_folder(environ),
        options.jit_dirs,
        options.nproc_per_node + options.spares,
        options.world_size,
        options.nnodes,
        not options.given.no_python,
        tuple(sorted(others)),
        options.controller_port if options.controller is None else 0,
        metrics=options.metrics,
        command=shlex.join((options.script, *options.given.script_args)) if options.script else "",
    )


def subject_of(given: GivenOptions, machine: MachineFacts, environ: Mapping[str, str]) -> Subject:
    """Return what checks need to know of a command line, which may be wrong, or have no script."""
    try:
        options = check(given, machine, environ, needs_script=bool(given.script))
        return replace(subject(options, environ), meeting=meeting_place(options))
    except UserError as e:
        dirs = tuple(each.absolute() for each in given.jit_dirs)
        return Subject(folder.state_folder(environ), dirs, runs_python=not given.no_python, problem=str(e))
