"""Which job checks are made for: that of a command line, or one as small as can be."""

from __future__ import annotations

import shlex
from collections.abc import Mapping

from torchrelay.cli import folder
from torchrelay.cli.options import LOOPBACK, GivenOptions, MachineFacts, RunOptions, check
from torchrelay.cli.preflight.checks import Subject
from torchrelay.protocol.errors import UserError


def subject(options: RunOptions, environ: Mapping[str, str]) -> Subject:
    """Of a run on this machine."""
    others = {options.master_addr, options.controller[0] if options.controller else LOOPBACK} - {LOOPBACK}
    return Subject(
        folder.state_folder(environ),
        options.jit_dirs,
        options.nproc_per_node + options.spares,
        options.world_size,
        options.nnodes,
        not options.no_python,
        tuple(sorted(others)),
        options.controller_port if options.controller is None else 0,
        metrics=options.metrics,
        command=shlex.join((options.script, *options.script_args)) if options.script else "",
    )


def subject_of(given: GivenOptions, machine: MachineFacts, environ: Mapping[str, str]) -> Subject:
    """The same for a command line that may be wrong, or have no script."""
    try:
        return subject(check(given, machine, environ, needs_script=bool(given.script)), environ)
    except UserError as e:
        dirs = tuple(each.absolute() for each in given.jit_dirs)
        return Subject(folder.state_folder(environ), dirs, runs_python=not given.no_python, problem=str(e))
