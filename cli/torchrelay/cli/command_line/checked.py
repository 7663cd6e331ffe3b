"""The one check of a whole command line, before anything starts."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from pathlib import Path

from torchrelay.cli.command_line.addresses import (
    LOOPBACK,
    controller_port,
    controllers,
    leads_first,
    master_port,
    metrics_address,
)
from torchrelay.cli.command_line.given import MAX_RESTARTS, GivenOptions
from torchrelay.cli.command_line.machine_facts import MachineFacts
from torchrelay.cli.command_line.options import RunOptions
from torchrelay.cli.command_line.times import time_s
from torchrelay.protocol.errors import UserError
from torchrelay.protocol.health.policy_file import read_policy
from torchrelay.protocol.journals.kept import COPIES_AS_NEEDED
from torchrelay.protocol.logs.log_lines import LogFormat
from torchrelay.protocol.names import ENV_NOTIFY, ENV_SECRET
from torchrelay.protocol.notify.target import NotifyTarget, TargetNames, read_target
from torchrelay.protocol.options.faults import COMPILERS, COPY, Fault, FaultKind, parse_fault
from torchrelay.protocol.options.numbers import NumberWatch, parse_watch
from torchrelay.protocol.security.transfer_protection import checked

LEAST_LEASE_S = 20.0
MINIMUM_SECRET_CHARACTERS = 16


def check(
    given: GivenOptions, machine: MachineFacts, environment: Mapping[str, str], *, needs_script: bool = True
) -> RunOptions:
    """Check the whole command line, and return the options of a run.

    Raises UserError, with what to do, for anything that could not work.
    """
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
    if not 0 <= given.cost_limit_percent <= 100:
        raise UserError(f"--cost-limit {given.cost_limit_percent:g}: give percent of a step, 0 to 100; 0: no limit")
    if given.max_restarts is not None and given.max_restarts < 0:
        raise UserError(f"--max-restarts {given.max_restarts}: give a number, 0 or more; 0: never")
    if needs_script:
        _check_program(given, machine)
    faults = tuple(parse_fault(text, nnodes * nproc) for text in given.inject)
    _check_faults(given, faults, nnodes, nproc)
    _check_files(given, machine)
    _check_health(given, faults, machine)
    return RunOptions(
        given=given,
        script=given.script,
        nproc_per_node=nproc,
        nnodes=nnodes,
        node_rank=given.node_rank,
        master_addr=given.master_addr or LOOPBACK,
        master_port=master_port(given, nnodes, machine),
        redirects=parse_streams("--redirects", given.redirects, nproc),
        tee=parse_streams("--tee", given.tee, nproc),
        log_dir=given.log_dir,
        spares=given.spares,
        rehearse_every_s=time_s("--rehearse-every", given.rehearse_every),
        hang_timeout_s=time_s("--hang-timeout", given.hang_timeout),
        lease_s=_lease_s(given.lease),
        machine_wait_s=time_s("--machine-wait", given.machine_wait),
        transfer_encryption=checked(given.transfer_encryption),
        watches=_watches(given.watch),
        faults=faults,
        events=given.events,
        resume=given.resume.absolute() if given.resume else None,
        jit_dirs=tuple(folder.absolute() for folder in given.jit_dirs),
        health_policy=given.health_policy.absolute() if given.health_policy else None,
        watch_folders=tuple(folder.absolute() for folder in given.watch_folders),
        node_notices=tuple(file.absolute() for file in given.node_notices),
        replay=given.replay.absolute() if given.replay else None,
        max_restarts=MAX_RESTARTS if given.max_restarts is None else given.max_restarts,
        controllers=controllers(given, nnodes),
        controller_port=controller_port(given, nnodes),
        metrics=metrics_address(given.metrics_port),
        log_format=_log_format(given.log_format),
        name=given.name or Path(given.script).stem,
        notify=_notify(given, environment),
        secret=_secret(nnodes, environment),
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
        leads = leads_first(given.node_rank, controllers(given, nnodes))
        if fault.kind is FaultKind.CONTROLLER and (not leads or fault.rank // nproc != given.node_rank):
            raise UserError(
                f"--inject {fault}: it is killed by an agent of its own machine; take a rank of that machine, and give it there"
            )
        if fault.kind is not FaultKind.NODE:
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


def _notify(given: GivenOptions, environment: Mapping[str, str]) -> NotifyTarget | None:
    url = given.notify if given.notify is not None else environment.get(ENV_NOTIFY, "")
    if not url and given.notify is None:
        return None
    template = ""
    if given.notify_template is not None:
        try:
            template = given.notify_template.read_text()
        except (OSError, UnicodeDecodeError) as e:
            raise UserError(f"--notify-template {given.notify_template}: {e}") from e
    source = "--notify" if given.notify is not None else ENV_NOTIFY
    names = TargetNames(source, "--notify-on", "--notify-format")
    return read_target(names, url, given.notify_on or "", given.notify_format, template)


def parse_streams(option: str, text: str, nproc: int) -> tuple[int, ...]:
    """Read torchrun's notation (`3`, or `0:1,1:2` by local rank): return one of 0..3 for each local rank. Raises UserError."""
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
