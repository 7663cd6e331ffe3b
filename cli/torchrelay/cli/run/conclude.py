"""How `torchrelay run` ends: what it says, and with which exit code."""

from __future__ import annotations

import json

from torchrelay.cli.command_line import configs
from torchrelay.cli.command_line.options import RunOptions
from torchrelay.cli.display import narrate
from torchrelay.cli.display.run_json import as_json
from torchrelay.cli.display.summary import RunSummary, faults_that_never_fired, has_planned_without_migration
from torchrelay.cli.display.teller import Teller
from torchrelay.cli.restarting.runs import Runs
from torchrelay.protocol.logs.standard_streams import print_result
from torchrelay.protocol.names import EXIT_FAULT_NOT_INJECTED


def conclude(options: RunOptions, runs: Runs, summary: RunSummary, code: int, teller: Teller) -> int:
    """Say how the run ended, and return the exit code.

    A success without the faults and migrations that --inject asked for is a failure.
    """
    job = runs.job
    if not job.was_started and not summary.restarts:
        return code
    succeeded = summary.exit_code is not None and code == 0
    never_fired = faults_that_never_fired(options.faults, summary) if succeeded else []
    if never_fired or (succeeded and has_planned_without_migration(options.faults, summary)):
        code = EXIT_FAULT_NOT_INJECTED
    if not job.stopped_by and not (options.given.quiet and code == 0):
        resume = configs.resume_command(options.given, summary.checkpoint)
        teller.say(narrate.closing(summary, code, resume, never_fired, runs.no_restart))
    if job.stopped_by and not options.given.quiet:
        teller.say([narrate.stopped(summary, job.stopped_by)])
    _hand_over(options, json.dumps(as_json(summary, code, never_fired)), teller)
    return code


def _hand_over(options: RunOptions, summary: str, teller: Teller) -> None:
    """Write the summary for programs, if it was asked for."""
    if options.given.json_summary:
        try:
            print_result(summary)
        except OSError as e:
            teller.say([narrate.line(f"the summary could not be written to stdout: {e.strerror}", "red")])
    if options.given.json_file is not None:
        try:
            options.given.json_file.write_text(summary + "\n", encoding="utf-8")
        except OSError as e:
            teller.say(
                [narrate.line(f"--json-file {options.given.json_file} could not be written: {e.strerror}", "red")]
            )
