"""What controller and agent are told in their configuration files, and how to go on from a checkpoint. Pure, but for a digest."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from torchrelay.cli import program
from torchrelay.cli.journals import journal_folder
from torchrelay.cli.options import LOOPBACK, GivenOptions, RunOptions
from torchrelay.protocol.names import AGENT_METRICS_OFFSET
from torchrelay.protocol.numbers import REPLICAS

ORPHAN_S = 60.0
ORPHAN_OF_ONE_MACHINE_S = 30.0
"""Here the controller is our child, and another one soon takes its place, if any does: an end need not wait long for it."""
EVERY_ADDRESS = "0.0.0.0"
INCIDENTS = "torchrelay-incidents"
"""Beside the folder of just-in-time checkpoints."""
DIRECTORY = "{directory}"
"""In the controller's `resume_command`: filled in by it."""


def script_command(options: RunOptions) -> tuple[str, ...]:
    """What follows `python -u`, or with --no-python the whole command."""
    return (*(("-m",) if options.module else ()), options.script, *options.script_args)


def _program(options: RunOptions) -> dict[str, Any]:
    """Fields of messages.Program; empty on one machine, which has nobody to differ from."""
    if options.nnodes == 1:
        return {}
    return {
        "script": program.script_path(options),
        "sha256": program.script_digest(options),
        "sources": program.sources(options),
        "python": program.python_version(options),
        "torch": program.torch_version(),
        "inject": program.faults_of_all(options),
        "resume_command": resume_command(options.given, DIRECTORY),
        "jit_dirs": list(map(str, options.jit_dirs)),
        "jit_marks": list(options.jit_marks),
        "jit_given": options.given.jit_dirs != GivenOptions("").jit_dirs,
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
    """Keys of agent.config.AgentConfig. `controller` is HOST:PORT, `host` this machine as the other ones reach it.

    `candidate`: HOST:PORT of a controller that this command may start, where machines are several.
    """
    return {
        "run_id": run_id,
        "node": options.node,
        "node_rank": options.node_rank,
        "nnodes": options.nnodes,
        "nproc_per_node": options.nproc_per_node,
        "spares": options.spares,
        "command": list(script_command(options)),
        "python": "" if options.no_python else sys.executable,
        "host": host,
        "controller": controller,
        "secret_file": str(secret_file),
        "run_dir": str(run_folder),
        "journal_dir": str(journal_folder(run_folder.name, run_folder)),
        "master_addr": options.master_addr,
        "master_port": options.master_port,
        "inject": [str(fault) for fault in options.faults],
        "machine": str(run_folder / "machine") if options.needs_fake_machine else "",
        "replay": str(options.replay) if options.replay else "",
        "buddy_every": options.buddy_every,
        "buddy_sync": options.buddy_sync,
        "cost_limit_percent": options.cost_limit,
        "protection": options.transfer_encryption,
        "number_watches": list(map(str, options.watches)),
        "watched": list(map(str, options.watch_folders)),
        "notices": list(map(str, options.node_notices)),
        "dcgm": options.dcgm,
        "resume": options.resume is not None,
        "parks": options.parks_scripts,
        "tee": _streams(options.tee),
        "redirects": _streams(options.redirects),
        "log_dir": str(options.log_dir.absolute()) if options.log_dir else "",
        "role": options.role,
        "scripts_begun": options.scripts_begun,
        "check_steps": options.check_steps,
        "check_batches": options.check_batches,
        "controller_file": str(controller_file(run_folder)),
        "candidate": candidate,
        "joins": options.joins,
        **_metrics(options, AGENT_METRICS_OFFSET),
        "jit_dirs": list(map(str, options.jit_dirs)),
        "program": _program(options),
        "orphan_s": ORPHAN_OF_ONE_MACHINE_S if options.nnodes == 1 else ORPHAN_S,
    }


def _metrics(options: RunOptions, offset: int = 0) -> dict[str, Any]:
    if options.metrics is None:
        return {}
    host, port = options.metrics
    return {"metrics_host": host, "metrics_port": port + offset}


def controller_config(options: RunOptions, run_id: str, secret_file: Path, address_file: Path) -> dict[str, Any]:
    """Keys of controller.config.ControllerConfig."""
    return {
        "run_id": run_id,
        "nnodes": options.nnodes,
        "nproc_per_node": options.nproc_per_node,
        "secret_file": str(secret_file),
        "address_file": str(address_file),
        "jit_dir": str(options.jit_dirs[0]),
        "jit_dirs_more": list(map(str, options.jit_dirs[1:])),
        "incident_dir": "" if options.check_steps else str(options.jit_dirs[0].parent / INCIDENTS),
        "incident_journals": options.incident_journals,
        "master_addr": options.master_addr,
        "master_port": options.master_port,
        "listen_host": LOOPBACK if options.nnodes == 1 else EVERY_ADDRESS,
        "listen_port": options.controller_port,
        "port_is_held": True,
        **_metrics(options),
        "node": options.node,
        "check_steps": options.check_steps,
        "resume_dir": str(options.resume) if options.resume else "",
        "command": list(script_command(options)),
        "script_sha256": program.script_digest(options),
        "refill": options.refill and not options.check_steps,
        "respawn_limit": 0 if options.check_steps else options.respawn_limit,
        "restarts_done": options.restarts_done,
        "scripts_begun": options.scripts_begun,
        "migrations_begun": options.migrations_begun,
        "respawned": respawned(options.respawned_s),
        "resume_command": resume_command(options.given, DIRECTORY),
        "buddy_every": options.buddy_every,
        "buddy_sync": options.buddy_sync,
        "rehearse_every_s": options.rehearse_every_s,
        "policy": {"hang_timeout_s": options.hang_timeout_s},
        "lease_s": options.lease_s if options.nnodes > 1 else 0,
        "machine_wait_s": options.machine_wait_s,
        "replica_action": next((w.action for w in options.watches if w.what == REPLICAS), ""),
        "health_policy": str(options.health_policy) if options.health_policy else "",
        "health_observe": options.observe,
    }


def respawned(starts: Iterable[tuple[int, float]]) -> list[str]:
    """ControllerConfig.respawned, from ranks and times of day."""
    return [f"{rank} {time_s:.3f}" for rank, time_s in starts]


def controller_file(run_folder: Path) -> Path:
    """Where the controller says how it is reached."""
    return run_folder / "controller-address.json"


def reachable(listen_host: str) -> str:
    """Where a process of this machine finds a controller that listens on `listen_host`."""
    return LOOPBACK if listen_host == EVERY_ADDRESS else listen_host


def _streams(by_local_rank: tuple[int, ...]) -> str:
    if len(set(by_local_rank)) == 1:
        return str(by_local_rank[0])
    return ",".join(f"{local_rank}:{value}" for local_rank, value in enumerate(by_local_rank))


def resume_command(given: GivenOptions, directory: str) -> str:
    """The command that goes on from the checkpoint in `directory`: as it was given, without the faults.

    Their steps may be over, and a fault that never fires fails the run.
    """
    default = GivenOptions("")
    flags: list[str] = ["--resume", directory]
    values: dict[str, object] = {
        "--nproc-per-node": given.nproc_per_node,
        "--nnodes": given.nnodes,
        "--node-rank": given.node_rank,
        "--master-addr": given.master_addr,
        "--master-port": given.master_port,
        "--role": given.role,
        "--spares": given.spares,
        "--max-restarts": given.max_restarts,
        "--respawn-limit": given.respawn_limit,
        "--buddy-every": given.buddy_every,
        "--rehearse-every": given.rehearse_every,
        "--hang-timeout": given.hang_timeout,
        "--lease": given.lease,
        "--machine-wait": given.machine_wait,
        "--cost-limit": given.cost_limit,
        "--transfer-encryption": given.transfer_encryption,
        "--redirects": given.redirects,
        "--tee": given.tee,
        "--log-dir": given.log_dir,
        "--health-policy": given.health_policy,
        "--dcgm": given.dcgm,
        "--controller": given.controller,
        "--controller-port": given.controller_port,
        "--metrics-port": given.metrics_port,
        "--events": given.events,
        "--json-file": given.json_file,
        "--log-format": given.log_format,
        "--name": given.name,
        "--notify": given.notify,
        "--notify-on": given.notify_on,
        "--notify-format": given.notify_format,
        "--notify-template": given.notify_template,
    }
    for flag, value in values.items():
        if value != getattr(default, flag[2:].replace("-", "_")):
            flags += [flag, str(value)]
    several = [("--watch-folder", given.watch_folders), ("--node-notice", given.node_notices)]
    if given.jit_dirs != default.jit_dirs:
        several.append(("--jit-dir", given.jit_dirs))
    for flag, paths in several:
        flags += [word for path in paths for word in (flag, str(path))]
    for watch in given.watch:
        flags += ["--watch", watch]
    switches = {
        "--no-refill": not given.refill,
        "--observe": given.observe,
        "--buddy-sync": given.buddy_sync,
        "--incident-journals": given.incident_journals,
        "--json": given.json_summary,
        "--quiet": given.quiet,
        "--verbose": given.verbose,
        "--no-python": given.no_python,
        "-m": given.module,
    }
    flags += [flag for flag, on in switches.items() if on]
    return shlex.join([*program.own_command(), "run", *flags, given.script, *given.script_args])
