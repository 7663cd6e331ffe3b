"""Carries out `torchrelay run`: what there is once for all incarnations of a job, from its folder to its last word."""

from __future__ import annotations

import os
import secrets
import signal
import sys
import time
from dataclasses import replace

from torchrelay.cli.command_line import configs
from torchrelay.cli.command_line.options import RunOptions
from torchrelay.cli.controller_client.follow import JobFollower
from torchrelay.cli.display import narrate
from torchrelay.cli.display.teller import Teller
from torchrelay.cli.folders import folder
from torchrelay.cli.folders.history import history_folder, prune
from torchrelay.cli.folders.journals import own_journals
from torchrelay.cli.folders.kept_run import RunHead, RunWriter
from torchrelay.cli.leading.held_port import hold_or_another
from torchrelay.cli.leading.known_machines import mark, remove_machines, run_id_of
from torchrelay.cli.leading.seat import Seat
from torchrelay.cli.preflight.checks import before_a_run
from torchrelay.cli.preflight.probe import Probe
from torchrelay.cli.preflight.subject import subject
from torchrelay.cli.restarting.runs import Runs
from torchrelay.cli.run.conclude import conclude
from torchrelay.cli.run.local_job import LocalJob
from torchrelay.cli.run.notices import notices_of
from torchrelay.protocol.logs.log_lines import LogFormat, LogLines, LogPart, for_children


async def launch(options: RunOptions, command: tuple[str, ...]) -> int:
    """Run the job, and return the exit code of the command. Raises UserError before anything was started."""
    warnings = before_a_run(Probe(os.environ), subject(options, os.environ))
    secret = options.secret or secrets.token_hex(32).encode()
    seat = Seat(leads=options.controller is None)
    run_id = secrets.token_hex(4) if options.secret is None else run_id_of(secret)
    name = run_id if options.nnodes == 1 else f"{run_id}-n{options.node_rank}"
    if options.nnodes > 1:
        options = replace(options, jit_marks=tuple(mark(each, run_id) for each in options.jit_dirs))
    run_folder = folder.make_run_folder(folder.state_folder(os.environ), name)
    held = hold_or_another(options.controller_port)
    options = replace(options, controller_port=held.port)
    is_json = LogLines.from_environ(LogPart.COMMAND, os.environ).is_json
    os.environ.update(for_children(LogFormat.JSON if is_json else options.log_format, run_id))
    teller = Teller(sys.stderr, os.environ, options.given.quiet, options.given.verbose)
    try:
        if not options.given.quiet:
            teller.say([narrate.line(f"{w.text}: {w.remedy}", "yellow") for w in warnings])
        kept = _history_of(options, run_id, name, command, teller)
        async with notices_of(options, run_id, teller) as notices:
            with own_journals(name, run_folder), JobFollower(teller, options.events, kept, notices.event) as follower:

                def new_job(these: RunOptions, restarts: tuple[str, ...]) -> LocalJob:
                    return LocalJob(these, run_id, run_folder, secret, follower, teller, restarts, seat)

                runs = Runs(options, run_id, follower, new_job, lambda: options.nnodes == 1 or seat.known.shared)
                code = await runs.run(command)
                teller.close()
                if options.nnodes > 1 and follower.summary.exit_code is not None:
                    for jit_dir in options.jit_dirs:
                        remove_machines(jit_dir, run_id, [seat.known.job])
                if runs.job.was_started and options.nnodes == 1:
                    follower.ended(code, _why_over(runs))
                code = conclude(options, runs, follower.summary, code, teller)
                notices.end(follower.summary, code, configs.resume_command(options.given, follower.summary.checkpoint))
                return code
    finally:
        teller.close()
        held.sock.close()
        folder.remove_run(run_folder)


def _why_over(runs: Runs) -> str:
    """Return why a job is over whose controller could not say so."""
    if runs.job.stopped_by:
        return f"stopped by {signal.Signals(runs.job.stopped_by).name}"
    return runs.job.agent_lost or "its controller did not say how it ended"


def _history_of(
    options: RunOptions, run_id: str, machine: str, command: tuple[str, ...], teller: Teller
) -> RunWriter | None:
    """Open the history of this run, and make room for it; None where no history is kept."""
    history = history_folder(os.environ)
    if history is None:
        return None
    own = folder.Process.find(os.getpid())
    head = RunHead(run_id, options.name, machine, os.getcwd(), command, time.time(), own)
    writer = RunWriter(history, head, lambda text: teller.say([narrate.line(text, "yellow")]))
    prune(history)
    return writer
