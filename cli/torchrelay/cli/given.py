"""The options that commands about a whole run have in common, declared once."""

from __future__ import annotations

import functools
import inspect
import os
from collections.abc import Callable
from typing import Any, get_type_hints

from torchrelay.cli import arguments as a
from torchrelay.cli import options
from torchrelay.protocol.cost_limit import MOST_SHARE_PERCENT
from torchrelay.protocol.journals.kept import COPIES_AS_NEEDED
from torchrelay.protocol.security.transfer_protection import INTEGRITY


def takes_options_of_a_run(
    text: str, **defaults: Any
) -> Callable[[Callable[[options.GivenOptions], int]], Callable[..., int]]:
    """Makes a command of a function that takes what was given. `text`: its help. `defaults`: of options, where they differ."""

    def as_command(act: Callable[[options.GivenOptions], int]) -> Callable[..., int]:
        @functools.wraps(_given)  # typer reads options from the signature
        def command(*args: Any, **given: Any) -> int:
            return act(_given(*args, **given))

        hints = get_type_hints(_given, include_extras=True)  # with this module's names
        signature = inspect.signature(_given)
        changed = [
            p.replace(default=defaults.get(p.name, p.default), annotation=hints[p.name])
            for p in signature.parameters.values()
        ]
        command.__annotations__ = hints
        command.__name__, command.__doc__ = act.__name__, text
        command.__signature__ = signature.replace(parameters=changed)  # type: ignore[attr-defined]  # functions may have one
        return command

    return as_command


def _given(
    script: a.Script,
    script_args: a.ScriptArgs = None,
    nproc_per_node: a.NprocPerNode = "1",
    nnodes: a.Nnodes = "1",
    node_rank: a.NodeRank = None,
    master_addr: a.MasterAddr = None,
    master_port: a.MasterPort = None,
    module: a.Module = False,
    no_python: a.NoPython = False,
    standalone: a.Standalone = False,
    redirects: a.Redirects = "0",
    tee: a.Tee = "0",
    log_dir: a.LogDir = None,
    role: a.Role = "default",
    max_restarts: a.MaxRestarts = None,
    spares: a.Spares = 0,
    refill: a.Refill = True,
    respawn_limit: a.RespawnLimit = options.RESPAWN_LIMIT,
    buddy_every: a.BuddyEvery = COPIES_AS_NEEDED,
    buddy_sync: a.BuddySync = False,
    rehearse_every: a.RehearseEvery = options.REHEARSE_EVERY,
    hang_timeout: a.HangTimeout = options.HANG_TIMEOUT,
    lease: a.Lease = options.LEASE,
    machine_wait: a.MachineWait = options.MACHINE_WAIT,
    cost_limit: a.CostLimit = MOST_SHARE_PERCENT,
    transfer_encryption: a.TransferEncryption = INTEGRITY,
    watch: a.Watch = None,
    inject: a.Inject = None,
    resume: a.Resume = None,
    jit_dir: a.JitDir = None,
    incident_journals: a.IncidentJournals = False,
    health_policy: a.HealthPolicy = None,
    observe: a.Observe = False,
    watch_folder: a.WatchFolder = None,
    node_notice: a.NodeNotice = None,
    dcgm: a.Dcgm = "auto",
    replay: a.Replay = None,
    controller: a.Controller = None,
    controller_port: a.ControllerPort = None,
    metrics_port: a.MetricsPort = None,
    events: a.Events = None,
    json_summary: a.JsonSummary = False,
    json_file: a.JsonFile = None,
    quiet: a.Quiet = False,
    verbose: a.Verbose = False,
    log_format: a.LogForm = "text",
    name: a.JobName = None,
    notify: a.Notify = None,
    notify_on: a.NotifyOn = None,
    notify_format: a.NotifyFormat = "json",
    notify_template: a.NotifyTemplate = None,
) -> options.GivenOptions:
    """What `run` and `doctor` are given: the same options."""
    return options.GivenOptions(
        script=script,
        script_args=tuple(script_args or ()),
        nproc_per_node=nproc_per_node,
        nnodes=nnodes,
        node_rank=options.own_node_rank(node_rank, nnodes, os.environ),
        master_addr=master_addr,
        master_port=master_port,
        module=module,
        no_python=no_python,
        redirects=redirects,
        tee=tee,
        log_dir=log_dir,
        role=role,
        max_restarts=max_restarts,
        spares=spares,
        refill=refill,
        respawn_limit=respawn_limit,
        buddy_every=buddy_every,
        buddy_sync=buddy_sync,
        rehearse_every=rehearse_every,
        hang_timeout=hang_timeout,
        lease=lease,
        machine_wait=machine_wait,
        cost_limit=cost_limit,
        transfer_encryption=transfer_encryption,
        watch=tuple(watch or ()),
        inject=tuple(inject or ()),
        resume=resume,
        jit_dirs=tuple(jit_dir or (options.JIT_DIR,)),
        incident_journals=incident_journals,
        health_policy=health_policy,
        observe=observe,
        watch_folders=tuple(watch_folder or ()),
        node_notices=tuple(node_notice or ()),
        dcgm=dcgm,
        replay=replay,
        controller=controller,
        controller_port=controller_port,
        metrics_port=metrics_port,
        events=events,
        json_summary=json_summary,
        json_file=json_file,
        quiet=quiet,
        verbose=verbose,
        log_format=log_format,
        name=name,
        notify=notify,
        notify_on=notify_on,
        notify_format=notify_format,
        notify_template=notify_template,
    )
