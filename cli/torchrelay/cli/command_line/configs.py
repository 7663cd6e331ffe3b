"""What controller and agent are told in their configuration files, and how to go on from a checkpoint. Pure, but for a digest."""

from __future__ import annotations

import dataclasses
import shlex
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from torchrelay.cli.command_line import program
from torchrelay.cli.command_line.addresses import LOOPBACK
from torchrelay.cli.command_line.given import GivenOptions, flags_to_go_on
from torchrelay.cli.command_line.options import RunOptions
from torchrelay.cli.folders.journals import journal_folder
from torchrelay.protocol.names import AGENT_METRICS_OFFSET
from torchrelay.protocol.options.handed_on import AgentOptions, ControllerOptions, JobOptions
from torchrelay.protocol.options.numbers import REPLICAS

ORPHAN_S = 60.0
ORPHAN_OF_ONE_MACHINE_S = 30.0
"""Here the controller is our child, and another one soon takes its place, if any does: an end need not wait long for it."""
EVERY_ADDRESS = "0.0.0.0"
INCIDENTS = "torchrelay-incidents"
"""Beside the folder of just-in-time checkpoints."""
DIRECTORY = "{directory}"
"""In the controller's `resume_command`: filled in by it."""


def script_command(options: RunOptions) -> tuple[str, ...]:
    """Return what follows `python -u`, or with --no-python the whole command."""
    return (*(("-m",) if options.given.module else ()), options.script, *options.given.script_args)


def program_fields(options: RunOptions) -> dict[str, Any]:
    """Return the fields of messages.Program. Empty for a job on one machine, which has no other to compare with."""
    if options.nnodes == 1:
        return {}
    sources = program.sources(options)
    return {
        "script": program.script_path(options),
        "sha256": program.script_digest(options),
        "sources": sources.digests,
        "imported": list(sources.imported),
        "sources_cut": sources.is_cut,
        "python": program.python_version(options),
        "torch": program.torch_version(),
        "inject": program.faults_of_all(options),
        "resume_command": resume_command(options.given, DIRECTORY),
        "jit_dirs": list(map(str, options.jit_dirs)),
        "jit_marks": list(options.jit_marks),
        "jit_given": options.given.jit_dirs != GivenOptions("").jit_dirs,
        "nnodes": options.nnodes,
        "nproc_per_node": options.nproc_per_node,
        "master_port": options.master_port,
    }


def agent_config(
    options: RunOptions,
    run_id: str,
    run_folder: Path,
    secret_file: Path,
    controller: str,
    host: str,
    candidate: str = "",
) -> dict[str, Any]:
    """Return the keys of agent.config.AgentConfig.

    `controller` is HOST:PORT, `host` this machine as the other machines reach it.
    `candidate`: HOST:PORT of a controller that this command may start, if there are several machines.
    """
    return {
        **handed_on(options, AgentOptions),
        "run_id": run_id,
        "node": options.node,
        "nnodes": options.nnodes,
        "nproc_per_node": options.nproc_per_node,
        "command": list(script_command(options)),
        "python": "" if options.given.no_python else sys.executable,
        "host": host,
        "controller": controller,
        "secret_file": str(secret_file),
        "run_dir": str(run_folder),
        "journal_dir": str(journal_folder(run_folder.name, run_folder)),
        "master_addr": options.master_addr,
        "master_port": options.master_port,
        "inject": [str(fault) for fault in options.faults],
        "machine": str(run_folder / "machine") if options.needs_fake_machine else "",
        "protection": options.transfer_encryption,
        "number_watches": list(map(str, options.watches)),
        "watched": list(map(str, options.watch_folders)),
        "notices": list(map(str, options.node_notices)),
        "resume": options.resume is not None,
        "parks": options.parks_scripts,
        "tee": _streams(options.tee),
        "redirects": _streams(options.redirects),
        "log_dir": str(options.log_dir.absolute()) if options.log_dir else "",
        "controller_file": str(controller_file(run_folder)),
        "candidate": candidate,
        **_metrics(options, AGENT_METRICS_OFFSET),
        "program": program_fields(options),
        "orphan_s": ORPHAN_OF_ONE_MACHINE_S if options.nnodes == 1 else ORPHAN_S,
    }


def handed_on(options: RunOptions, keys: type[JobOptions]) -> dict[str, Any]:
    """Return the options that `keys` names: the checked value if there is one, else the value as it was given."""
    names = [field.name for field in dataclasses.fields(keys)]
    return {name: _json(getattr(options if hasattr(options, name) else options.given, name)) for name in names}


def _json(value: Any) -> Any:
    if value is None:
        return ""
    if isinstance(value, tuple):
        return list(map(_json, value))
    return str(value) if isinstance(value, Path) else value


def _metrics(options: RunOptions, offset: int = 0) -> dict[str, Any]:
    if options.metrics is None:
        return {}
    host, port = options.metrics
    return {"metrics_host": host, "metrics_port": port + offset}


def controller_config(options: RunOptions, run_id: str, secret_file: Path, address_file: Path) -> dict[str, Any]:
    """Return the keys of controller.config.ControllerConfig."""
    return {
        **handed_on(options, ControllerOptions),
        "run_id": run_id,
        "nnodes": options.nnodes,
        "nproc_per_node": options.nproc_per_node,
        "secret_file": str(secret_file),
        "address_file": str(address_file),
        "jit_dir": str(options.jit_dirs[0]),
        "jit_dirs_more": list(map(str, options.jit_dirs[1:])),
        "incident_dir": "" if options.check_steps else str(options.jit_dirs[0].parent / INCIDENTS),
        "master_addr": options.master_addr,
        "master_port": options.master_port,
        "listen_host": LOOPBACK if options.nnodes == 1 else EVERY_ADDRESS,
        "listen_port": options.controller_port,
        "port_is_held": True,
        **_metrics(options),
        "node": options.node,
        "resume_dir": str(options.resume) if options.resume else "",
        "command": list(script_command(options)),
        "script_sha256": program.script_digest(options),
        "refill": options.given.refill and not options.check_steps,
        "respawn_limit": 0 if options.check_steps else options.given.respawn_limit,
        "respawned": respawned(options.respawned_s),
        "imports_differ": options.imports_differ,
        "resume_command": resume_command(options.given, DIRECTORY),
        "checks_only": options.checks_only,
        "policy": {"hang_timeout_s": options.hang_timeout_s},
        "lease_s": options.lease_s if options.nnodes > 1 else 0,
        "replica_action": next((w.action for w in options.watches if w.what == REPLICAS), ""),
    }


def respawned(starts: Iterable[tuple[int, float]]) -> list[str]:
    """Return the value of ControllerConfig.respawned, from ranks and times of day."""
    return [f"{rank} {time_s:.3f}" for rank, time_s in starts]


def controller_file(run_folder: Path) -> Path:
    """Return the file in which the controller says how it is reached."""
    return run_folder / "controller-address.json"


def reachable(listen_host: str) -> str:
    """Return the host under which processes of this machine reach a controller that listens on `listen_host`."""
    return LOOPBACK if listen_host == EVERY_ADDRESS else listen_host


def _streams(by_local_rank: tuple[int, ...]) -> str:
    if len(set(by_local_rank)) == 1:
        return str(by_local_rank[0])
    return ",".join(f"{local_rank}:{value}" for local_rank, value in enumerate(by_local_rank))


def resume_command(given: GivenOptions, directory: str) -> str:
    """Return the command that goes on from the checkpoint in `directory`: the user's command without the faults."""
    flags = ["--resume", directory, *flags_to_go_on(given)]
    return shlex.join([*program.own_command(), "run", *flags, given.script, *given.script_args])
